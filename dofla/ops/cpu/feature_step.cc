#include "dofla/ops/feature_step.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace dofla::cpu {
namespace {

void divide(double norm, Tensor gradient) {
  float* data = gradient.data<float>();
  for (int64_t i = 0; i < gradient.count(); ++i) data[i] = static_cast<float>(data[i] / norm);
}

// What belongs to a head of one part of the features: its rows of z and log α, of u for all its
// query heads, and its η.
Tensor of_head(std::string_view part, const Tensor& whole, const Features& features, size_t head) {
  const std::vector<int64_t> offsets = features.offsets();
  const int64_t each = part == "u" ? features.group() : 1, at = static_cast<int64_t>(head);
  if (part == "norm_weight") return whole.slice(at, at + 1);
  return whole.slice(each * offsets[head], each * offsets[head + 1]);
}

bool finite_losses(const Tensor& loss, int64_t group, size_t head) {
  const double* own = loss.data<double>() + static_cast<int64_t>(head) * group;
  return std::all_of(own, own + group, [](double x) { return std::isfinite(x); });
}

Tensor feature_step(const Tensor& loss, const FeatureGradients& grad,
                    const FeatureStepOptions& options, FeatureMoments& moments,
                    Features& features) {
  Tensor norms({features.heads()}, DType::kF64);
  FeatureGradients unit = grad;
  for (auto [name, part] : feature_parts(unit))
    if (part->defined()) *part = part->clone();
  bool finite = true;
  for (size_t head = 0; head < features.counts.size(); ++head) {
    std::vector<Tensor> own;
    for (auto [name, part] : feature_parts(unit))
      if (part->defined()) own.push_back(of_head(name, *part, features, head));
    double norm = gradient_norm(own).data<double>()[0];
    if (!std::isfinite(norm) || !finite_losses(loss, features.group(), head)) {
      norm = std::numeric_limits<double>::quiet_NaN();
      finite = false;
    } else if (norm > 0) {
      for (const Tensor& part : own) divide(norm, part);
    }
    norms.data<double>()[head] = norm;
  }
  const auto parts = feature_parts(features);
  const auto gradients = feature_parts(unit);
  const auto moment = feature_parts(moments);
  std::vector<AdamParameter> learning;
  for (size_t i = 0; finite && i < parts.size(); ++i)
    if (parts[i].second->defined())
      learning.push_back({.value = *parts[i].second,
                          .gradient = *gradients[i].second,
                          .moments = *moment[i].second,
                          .options = {.learning_rate = learning_rate(options, parts[i].first)}});
  kAdam.step(learning, {}, 0);
  return norms;
}

}  // namespace

const FeatureStepBackend kFeatureStep = {.feature_step = feature_step};

}  // namespace dofla::cpu
