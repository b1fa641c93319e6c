#include "dofla/fidelity/divergence.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "dofla/core/error.h"
#include "dofla/core/random.h"

namespace dofla {
namespace {

constexpr int kDraws = 1000;  // of the bootstrap
constexpr uint64_t kSeed = 17;

class CalibrationCounter {
 public:
  void add(double confidence, bool right) {
    const double place = confidence * static_cast<double>(Calibration::kBins);
    ReliabilityBin& bin =
        bins_[std::min(static_cast<size_t>(std::max(place, 0.0)), Calibration::kBins - 1)];
    ++bin.tokens;
    bin.confidence += confidence;
    bin.accuracy += right;
  }

  Calibration finish() && {
    Calibration result;
    double tokens = 0;
    for (ReliabilityBin& bin : bins_) {
      if (bin.tokens == 0) continue;
      const auto count = static_cast<double>(bin.tokens);
      result.error += std::abs(bin.confidence - bin.accuracy);
      tokens += count;
      bin.confidence /= count;
      bin.accuracy /= count;
    }
    result.error /= tokens;
    result.bins = std::move(bins_);
    return result;
  }

 private:
  std::vector<ReliabilityBin> bins_{Calibration::kBins};
};

}  // namespace

double Divergence::perplexity() const {
  return std::exp(loss);
}
double Divergence::perplexity_ratio() const {
  return std::exp(added());
}

double quantile(std::span<const double> sorted, double q) {
  require(!sorted.empty() && q >= 0 && q <= 1, "quantile: {} of {} numbers", q, sorted.size());
  const double place = q * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<size_t>(place);
  const size_t high = std::min(low + 1, sorted.size() - 1);
  return std::lerp(sorted[low], sorted[high], place - static_cast<double>(low));
}

double bootstrap_stderr(std::span<const double> sums, std::span<const double> counts) {
  require(sums.size() == counts.size(), "bootstrap: {} sums, {} counts", sums.size(),
          counts.size());
  if (sums.size() < 2) return std::numeric_limits<double>::quiet_NaN();
  Random random(kSeed);
  double mean = 0, squares = 0;  // of the draws so far, after Welford
  for (int draw = 1; draw <= kDraws; ++draw) {
    double sum = 0, count = 0;
    for (size_t i = 0; i < sums.size(); ++i) {
      const uint64_t window = random.below(sums.size());
      sum += sums[window];
      count += counts[window];
    }
    const double off = sum / count - mean;
    mean += off / draw;
    squares += off * (sum / count - mean);
  }
  return std::sqrt(squares / (kDraws - 1));
}

Divergence divergence_of(std::span<const WindowStatistics> windows) {
  Divergence result;
  CalibrationCounter student, teacher;
  std::vector<double> kl, kl_sums, added_sums, counts;
  double p_squares = 0;
  for (const WindowStatistics& window : windows) {
    double kl_sum = 0, added_sum = 0;
    for (const TokenStatistics& token : window) {
      const double change = std::exp(-token.student_loss) - std::exp(-token.teacher_loss);
      result.loss += token.student_loss;
      result.teacher_loss += token.teacher_loss;
      added_sum += token.student_loss - token.teacher_loss;
      kl_sum += token.kl;
      kl.push_back(token.kl);
      result.p_change += change;
      p_squares += change * change;
      result.same_top += token.same_top();
      result.top5_overlap += static_cast<double>(token.shared_top) / TokenStatistics::kTop;
      result.entropy_change += token.student_entropy - token.teacher_entropy;
      student.add(token.student_top_p, token.student_right());
      teacher.add(token.teacher_top_p, token.teacher_right());
    }
    result.kl += kl_sum;
    kl_sums.push_back(kl_sum);
    added_sums.push_back(added_sum);
    counts.push_back(static_cast<double>(window.size()));
  }
  require(!kl.empty(), "divergence: no token");
  const auto tokens = static_cast<double>(kl.size());
  for (double* mean : {&result.loss, &result.teacher_loss, &result.kl, &result.p_change,
                       &result.same_top, &result.top5_overlap, &result.entropy_change})
    *mean /= tokens;
  result.p_change_rms = std::sqrt(p_squares / tokens);
  result.tokens = std::ssize(kl);
  result.windows = std::ssize(windows);
  result.kl_stderr = bootstrap_stderr(kl_sums, counts);
  result.added_stderr = bootstrap_stderr(added_sums, counts);
  std::ranges::sort(kl);
  result.kl_median = quantile(kl, 0.5);
  result.kl_90 = quantile(kl, 0.9);
  result.kl_95 = quantile(kl, 0.95);
  result.kl_99 = quantile(kl, 0.99);
  result.kl_999 = quantile(kl, 0.999);
  result.kl_max = kl.back();
  result.calibration = std::move(student).finish();
  result.teacher_calibration = std::move(teacher).finish();
  return result;
}

}  // namespace dofla
