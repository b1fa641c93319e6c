#include "dofla/distill/train.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "dofla/core/error.h"

namespace dofla {
namespace {

constexpr int64_t kPatience = 10;      // steps that a layer may go wrong before it is given up
constexpr double kRunawayFactor = 10;  // a loss so many times that of the start has run away

// The part of a layer's gradient that belongs to one head, as [M, D] and [M].
struct HeadGradient {
  Tensor z, log_alpha;
};

HeadGradient head_gradient(const FeatureLoss& loss, const std::vector<int64_t>& offsets,
                           size_t head) {
  return {loss.grad_z.slice(offsets[head], offsets[head + 1]),
          loss.grad_log_alpha.slice(offsets[head], offsets[head + 1])};
}

// Every head's gradient goes to Adam with norm 1. The scale of an objective says nothing of how
// well a head does (that of l2 is 1e-20 where K̂ is still far from K), and a batch with one enormous
// gradient counts no more than another.
void divide(double norm, Tensor& gradient) {
  float* data = gradient.data<float>();
  for (int64_t i = 0; norm > 0 && i < gradient.count(); ++i)
    data[i] = static_cast<float>(data[i] / norm);
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
    const double norm = global_norm(both);
    if (!std::isfinite(norm) || !std::isfinite(loss.per_head[head])) {
      history_.skipped.push_back({steps_done() - 1, layer, static_cast<int64_t>(head)});
      return;
    }
    for (Tensor& part : both) divide(norm, part);
  }
  history_.loss.back()[at] = mean(loss.per_head);
  const auto adam = [&](double learning_rate, const Tensor& gradient, AdamMoments& moments,
                        Tensor& parameter) {
    adam_step(gradient, {.learning_rate = rate * learning_rate}, moments, parameter);
  };
  adam(options_.lr_z, loss.grad_z, moments_[at].z, features.z);
  adam(options_.lr_alpha, loss.grad_log_alpha, moments_[at].log_alpha, features.log_alpha);
}

void LayerwiseTrainer::stop_if_diverged(int64_t layer) const {
  const size_t at = static_cast<size_t>(layer);
  const std::vector<std::vector<double>>& loss = history_.loss;
  if (static_cast<int64_t>(loss.size()) < kPatience) return;
  std::vector<double> last;
  for (auto step = loss.end() - kPatience; step != loss.end(); ++step) last.push_back((*step)[at]);
  const char* advice = "lower --lr-z and --lr-alpha, or choose another --loss";
  if (std::all_of(last.begin(), last.end(), [](double x) { return std::isnan(x); }))
    fail("layer {}: the last {} steps were not finite; {}", layer + 1, kPatience, advice);
  if (mean(last) > kRunawayFactor * loss.front()[at])
    fail("layer {}: the loss has grown from {:.3g} to {:.3g}; {}", layer + 1, loss.front()[at],
         mean(last), advice);
}

}  // namespace dofla
