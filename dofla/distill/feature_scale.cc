#include "dofla/distill/feature_scale.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "dofla/core/error.h"
#include "dofla/ops/heads.h"

namespace dofla {
namespace {

double dot(const float* a, const float* b, int64_t size) {
  double sum = 0;
  for (int64_t c = 0; c < size; ++c) sum += double{a[c]} * b[c];
  return sum;
}

// log(exp(a) + exp(b))
double log_add(double a, double b) {
  const double top = std::max(a, b);
  return std::isinf(top) ? top : top + std::log(std::exp(a - top) + std::exp(b - top));
}

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

// The shift s for which Σ_i sigmoid(s + gaps_i) is `target`, which lies between 0 and their number.
double shift_for(const std::vector<double>& gaps, double target) {
  constexpr double kBeyond = 100;  // of a sigmoid that is 0 or 1
  const auto [least, most] = std::minmax_element(gaps.begin(), gaps.end());
  double low = -*most - kBeyond, high = -*least + kBeyond;
  constexpr int kHalvings = 100;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = 0.5 * (low + high);
    double sum = 0;
    for (const double gap : gaps) sum += sigmoid(middle + gap);
    (sum < target ? low : high) = middle;
  }
  return 0.5 * (low + high);
}

// log φ̃ of one query or key, [M].
std::vector<double> log_features(const float* x, int64_t size, const float* z,
                                 const float* log_alpha, int64_t count) {
  const double root = std::sqrt(static_cast<double>(size)), norm = dot(x, x, size) / (2 * root);
  std::vector<double> out;
  for (int64_t m = 0; m < count; ++m)
    out.push_back(dot(z + m * size, x, size) / std::sqrt(root) - norm +
                  0.5 * (log_alpha[m] - std::log(static_cast<double>(count))));
  return out;
}

}  // namespace

SampledRows sample_rows(const PairsToLearn& pairs, int64_t most) {
  require(pairs.rest.defined() && pairs.q.size(0) == 1,
          "sample_rows: no rest, or not one sequence");
  const auto here = [](const Tensor& x) { return x.to(Device()).to(DType::kF32); };
  const Tensor q = here(contiguous_heads(pairs.q)), rest = here(pairs.rest);
  const int64_t heads = q.size(1), tokens = q.size(2), size = q.size(3);
  const int64_t count = std::min(most, tokens);
  SampledRows rows = {Tensor({heads, count, size}),
                      Tensor({heads, count}),
                      here(contiguous_heads(pairs.k)).reshape({pairs.k.size(1), tokens, size}),
                      {}};
  for (int64_t i = 0; i < count; ++i) {
    const int64_t t = (2 * i + 1) * tokens / (2 * count);
    rows.seen.push_back((t / pairs.block + 1) * pairs.block);
    for (int64_t h = 0; h < heads; ++h) {
      std::copy_n(std::as_const(q).data<float>() + (h * tokens + t) * size, size,
                  rows.q.data<float>() + (h * count + i) * size);
      rows.rest.data<float>()[h * count + i] = std::as_const(rest).data<float>()[h * tokens + t];
    }
  }
  return rows;
}

double missing_log_scale(const SampledRows& rows, int64_t first, int64_t heads, const float* z,
                         const float* log_alpha, int64_t count) {
  const int64_t size = rows.q.size(2), n = rows.q.size(1);
  const int64_t key_head = first / (rows.q.size(0) / rows.k.size(0));
  const float* keys = rows.k.data<float>() + key_head * rows.k.size(1) * size;
  const double scale = 1 / std::sqrt(static_cast<double>(size));
  // Of the keys so far: log Σ_j φ̃_m(k_j).
  std::vector<double> seen(static_cast<size_t>(count), -std::numeric_limits<double>::infinity());
  int64_t known = 0;
  std::vector<double> gaps;  // log Σ K̂ − rest, of every query
  double left = 0;           // the attention that is left to features
  for (int64_t i = 0; i < n; ++i) {
    for (; known < rows.seen[static_cast<size_t>(i)]; ++known) {
      const std::vector<double> key = log_features(keys + known * size, size, z, log_alpha, count);
      for (size_t m = 0; m < key.size(); ++m) seen[m] = log_add(seen[m], key[m]);
    }
    for (int64_t h = first; h < first + heads; ++h) {
      const float* q = rows.q.data<float>() + (h * n + i) * size;
      const std::vector<double> query = log_features(q, size, z, log_alpha, count);
      double exact = -std::numeric_limits<double>::infinity(), estimate = exact;
      for (int64_t j = 0; j < known; ++j)
        exact = log_add(exact, scale * dot(q, keys + j * size, size));
      for (size_t m = 0; m < query.size(); ++m) estimate = log_add(estimate, query[m] + seen[m]);
      const double rest = rows.rest.data<float>()[h * n + i];
      gaps.push_back(estimate - rest);
      left += sigmoid(exact - rest);
    }
  }
  return left > 0 ? shift_for(gaps, left) : 0;
}

}  // namespace dofla
