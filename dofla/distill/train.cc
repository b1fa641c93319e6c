#include "dofla/distill/train.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "dofla/core/error.h"

namespace dofla {
namespace {

constexpr int64_t kPatience = 10;      // steps that a layer may go wrong before it is given up
constexpr double kRunawayFactor = 10;  // a loss so many times that of the start has run away

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

}  // namespace

FeatureTrainer::FeatureTrainer(FeatureSet start, Objective objective, const TrainOptions& options)
    : objective_(std::move(objective)), options_(options), features_(std::move(start)) {
  for (const Features& layer : features_.layers) moments_.push_back(new_feature_moments(layer));
}

void FeatureTrainer::step(const Tensor& ids) {
  const double left = static_cast<double>(options_.steps - steps_done());
  require(left > 0, "all {} steps are done", options_.steps);
  const double rate = left / static_cast<double>(options_.steps);
  const FeatureSet before = features_.clone();
  std::vector<LayerResult> results(features_.layers.size());
  objective_.run(ids, features_, [&](int64_t layer, const FeatureLoss& loss) {
    const size_t at = static_cast<size_t>(layer);
    const Tensor norms = feature_step(loss.per_head, loss.grad_z, loss.grad_log_alpha,
                                      {rate * options_.lr_z, rate * options_.lr_alpha},
                                      moments_[at], features_.layers[at]);
    results[at] = {loss.per_head, norms};
  });
  record(results);
  try {
    for (size_t curve = 0; curve < curves(); ++curve) stop_if_diverged(curve);
  } catch (const Error&) {
    features_ = before;
    throw;
  }
}

void FeatureTrainer::record(const std::vector<LayerResult>& results) {
  const int64_t step = steps_done();
  std::vector<double> losses;
  for (size_t layer = 0; layer < results.size(); ++layer) {
    const Tensor loss = results[layer].loss.to(Device()), norms = results[layer].norms.to(Device());
    const double* norm = norms.data<double>();
    const double* bad =
        std::find_if(norm, norm + norms.count(), [](double x) { return std::isnan(x); });
    if (bad != norm + norms.count()) {
      history_.skipped.push_back({step, static_cast<int64_t>(layer), bad - norm});
      losses.push_back(std::numeric_limits<double>::quiet_NaN());
    } else {
      losses.push_back(mean({loss.data<double>(), loss.data<double>() + loss.count()}));
    }
  }
  losses.resize(curves());
  history_.loss.push_back(losses);
}

void FeatureTrainer::stop_if_diverged(size_t curve) const {
  const std::vector<std::vector<double>>& loss = history_.loss;
  if (static_cast<int64_t>(loss.size()) < kPatience) return;
  std::vector<double> last;
  for (auto step = loss.end() - kPatience; step != loss.end(); ++step)
    last.push_back((*step)[curve]);
  const std::string where = objective_.per_layer ? fmt::format("layer {}: ", curve + 1) : "";
  const char* advice = "lower --lr-z and --lr-alpha, or choose another --loss";
  if (std::all_of(last.begin(), last.end(), [](double x) { return std::isnan(x); }))
    fail("{}the last {} steps were not finite; {}", where, kPatience, advice);
  if (mean(last) > kRunawayFactor * loss.front()[curve])
    fail("{}the loss has grown from {:.3g} to {:.3g}; {}", where, loss.front()[curve], mean(last),
         advice);
}

}  // namespace dofla
