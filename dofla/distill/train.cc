#include "dofla/distill/train.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "dofla/core/error.h"

namespace dofla {
namespace {

constexpr int64_t kLayerPatience = 10;  // steps that a layer may go wrong before it is given up

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

}  // namespace

FeatureTrainer::FeatureTrainer(FeatureSet start, Objective objective, const TrainOptions& options)
    : objective_(std::move(objective)), options_(options), features_(std::move(start)) {
  for (const Features& layer : features_.layers)
    moments_.push_back(layer.empty() ? FeatureMoments{} : new_feature_moments(layer));
}

void FeatureTrainer::step(const Tensor& ids) {
  const double left = static_cast<double>(options_.steps - steps_done());
  require(left > 0, "all {} steps are done", options_.steps);
  const double rate = left / static_cast<double>(options_.steps);
  const FeatureSet before = features_.clone();
  // Losses and gradient norms of every head stay on the features' device until the step is over:
  // a GPU is waited for once.
  const int64_t layers = static_cast<int64_t>(features_.layers.size());
  const Features& first = features_.first();
  // A layer without features has no error.
  const auto zeros = [&](int64_t heads) {
    return Tensor::zeros({layers, heads}, DType::kF64, first.z.device());
  };
  Tensor losses = zeros(first.query_heads()), norms = zeros(first.heads());
  objective_.run(ids, features_, [&](int64_t layer, const FeatureLoss& loss) {
    const size_t at = static_cast<size_t>(layer);
    const FeatureStepOptions step = {rate * options_.lr_z, rate * options_.lr_alpha,
                                     rate * options_.lr_norm};
    const Tensor norm =
        feature_step(loss.per_head, loss.grad, step, moments_[at], features_.layers[at]);
    losses.slice(layer, layer + 1).assign(loss.per_head.reshape({1, losses.size(1)}));
    norms.slice(layer, layer + 1).assign(norm.reshape({1, norms.size(1)}));
  });
  record(losses.to(Device()), norms.to(Device()));
  try {
    for (size_t curve = 0; curve < curves(); ++curve) stop_if_diverged(curve);
  } catch (const Error&) {
    features_ = before;
    throw;
  }
}

TrainingStep FeatureTrainer::last_step() const {
  TrainingStep step;
  step.step = steps_done();
  const std::vector<double>& losses = history_.loss.back();
  std::vector<double> trained;  // of layers that have features, where the step was not skipped
  for (size_t i = 0; i < losses.size(); ++i)
    if (!std::isnan(losses[i]) && !(objective_.per_layer && features_.layers[i].empty()))
      trained.push_back(losses[i]);
  step.loss = mean(trained);  // NaN if there is none
  if (objective_.per_layer) step.layer_losses = losses;
  const double rate =
      static_cast<double>(options_.steps - step.step + 1) / static_cast<double>(options_.steps);
  step.learning_rate = rate * options_.lr_z;
  step.alpha_rate = rate * options_.lr_alpha;
  return step;
}

void FeatureTrainer::record(const Tensor& losses, const Tensor& norms) {
  const int64_t step = steps_done(), query_heads = losses.size(1), heads = norms.size(1);
  std::vector<double> means;
  for (int64_t layer = 0; layer < losses.size(0); ++layer) {
    const double* loss = losses.data<double>() + layer * query_heads;
    const double* norm = norms.data<double>() + layer * heads;
    const double* bad = std::find_if(norm, norm + heads, [](double x) { return std::isnan(x); });
    if (bad != norm + heads) {
      history_.skipped.push_back({step, layer, bad - norm});
      means.push_back(std::numeric_limits<double>::quiet_NaN());
    } else {
      means.push_back(mean({loss, loss + query_heads}));
    }
  }
  means.resize(curves());
  history_.loss.push_back(means);
}

void FeatureTrainer::stop_if_diverged(size_t curve) const {
  const std::vector<std::vector<double>>& loss = history_.loss;
  if (static_cast<int64_t>(loss.size()) < kLayerPatience) return;
  std::vector<double> last;
  for (auto step = loss.end() - kLayerPatience; step != loss.end(); ++step)
    last.push_back((*step)[curve]);
  const std::string where = objective_.per_layer ? fmt::format("layer {}: ", curve + 1) : "";
  const char* advice = "lower the learning rates of z and log α, or choose another loss";
  if (std::all_of(last.begin(), last.end(), [](double x) { return std::isnan(x); }))
    fail("{}the last {} steps were not finite; {}", where, kLayerPatience, advice);
  if (mean(last) > objective_.runaway * loss.front()[curve])
    fail("{}the loss has grown from {:.3g} to {:.3g}; {}", where, loss.front()[curve], mean(last),
         advice);
}

}  // namespace dofla
