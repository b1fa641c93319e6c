#include "dofla/distill/train.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "dofla/core/error.h"

namespace dofla {
namespace {

// Adam's ε, far below its usual 1e-8: a head whose K̂ is still far from K has gradients of 1e-20 in
// the l2 loss, and should learn at the same pace.
constexpr double kEpsilon = 1e-30;
constexpr int64_t kPatience = 10;      // skipped steps in a row before a layer is given up
constexpr double kRunawayFactor = 20;  // a loss so many times its first values has run away

// The part of a layer's gradient that belongs to one head, as [M, D] and [M].
struct HeadGradient {
  Tensor z, log_alpha;
};

HeadGradient head_gradient(const FeatureLoss& loss, const std::vector<int64_t>& offsets,
                           size_t head) {
  return {loss.grad_z.slice(offsets[head], offsets[head + 1]),
          loss.grad_log_alpha.slice(offsets[head], offsets[head + 1])};
}

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

}  // namespace

LayerwiseTrainer::LayerwiseTrainer(const Transformer& teacher, FeatureSet start,
                                   const TrainOptions& options)
    : teacher_(teacher), options_(options), features_(std::move(start)) {
  require(static_cast<int64_t>(features_.layers.size()) == teacher.config().layers,
          "features for {} layers, the teacher has {}", features_.layers.size(),
          teacher.config().layers);
  for (const Features& layer : features_.layers)
    moments_.push_back({new_adam_moments(layer.z), new_adam_moments(layer.log_alpha)});
}

void LayerwiseTrainer::step(const Tensor& ids) {
  const double left = static_cast<double>(options_.steps - steps_done());
  require(left > 0, "all {} steps are done", options_.steps);
  const double rate = left / static_cast<double>(options_.steps);
  const FeatureSet before = features_.clone();
  history_.loss.emplace_back(features_.layers.size(), std::numeric_limits<double>::quiet_NaN());
  ForwardOptions forward;
  forward.heads_only = true;
  forward.observer = [&](int64_t layer, const Tensor& q, const Tensor& k, const Tensor&) {
    const Features& features = features_.layers[static_cast<size_t>(layer)];
    update(layer, feature_loss(q, k, features, options_.loss), rate);
  };
  teacher_.forward(ids, forward);
  try {
    for (int64_t i = 0; i < teacher_.config().layers; ++i) stop_if_diverged(i);
  } catch (const Error&) {
    features_ = before;
    throw;
  }
}

void LayerwiseTrainer::update(int64_t layer, FeatureLoss loss, double rate) {
  const size_t at = static_cast<size_t>(layer);
  Features& features = features_.layers[at];
  const std::vector<int64_t> offsets = features.offsets();
  for (size_t head = 0; head < features.counts.size(); ++head) {
    HeadGradient gradient = head_gradient(loss, offsets, head);
    Tensor both[] = {gradient.z, gradient.log_alpha};
    const double norm = clip_by_global_norm(options_.clip, both);
    if (!std::isfinite(norm) || !std::isfinite(loss.per_head[head])) {
      history_.skipped.push_back({steps_done() - 1, layer, static_cast<int64_t>(head)});
      return;
    }
  }
  history_.loss.back()[at] = mean(loss.per_head);
  const auto adam = [&](double learning_rate, const Tensor& gradient, AdamMoments& moments,
                        Tensor& parameter) {
    adam_step(gradient, {.learning_rate = rate * learning_rate, .epsilon = kEpsilon}, moments,
              parameter);
  };
  adam(options_.lr_z, loss.grad_z, moments_[at].z, features.z);
  adam(options_.lr_alpha, loss.grad_log_alpha, moments_[at].log_alpha, features.log_alpha);
}

void LayerwiseTrainer::stop_if_diverged(int64_t layer) const {
  const size_t at = static_cast<size_t>(layer);
  const std::vector<std::vector<double>>& loss = history_.loss;
  if (static_cast<int64_t>(loss.size()) < 2 * kPatience) return;
  std::vector<double> first, last;
  for (int64_t i = 0; i < kPatience; ++i) {
    first.push_back(loss[static_cast<size_t>(i)][at]);
    last.push_back(loss[loss.size() - 1 - static_cast<size_t>(i)][at]);
  }
  const char* advice = "lower --lr-z and --lr-alpha, or choose another --loss";
  if (std::all_of(last.begin(), last.end(), [](double x) { return std::isnan(x); }))
    fail("layer {}: the last {} steps were not finite; {}", layer + 1, kPatience, advice);
  if (mean(last) > kRunawayFactor * std::max(mean(first), 1e-6))
    fail("layer {}: the loss has grown from {:.3g} to {:.3g}; {}", layer + 1, mean(first),
         mean(last), advice);
}

}  // namespace dofla
