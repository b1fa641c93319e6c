#include "dofla/ops/feature_step.h"

namespace dofla {
namespace {

const FeatureStepBackend& feature_step_backend(const Device& device) {
  return device.is_cuda() ? cuda::kFeatureStep : cpu::kFeatureStep;
}

}  // namespace

FeatureMoments new_feature_moments(const Features& features) {
  FeatureMoments moments;
  const auto parts = feature_parts(features);
  const auto to = feature_parts(moments);
  for (size_t i = 0; i < parts.size(); ++i)
    if (parts[i].second->defined()) *to[i].second = new_adam_moments(*parts[i].second);
  return moments;
}

Tensor feature_step(const Tensor& loss, const FeatureGradients& grad,
                    const FeatureStepOptions& options, FeatureMoments& moments,
                    Features& features) {
  require_valid(features, features.z.size(1));
  require_shape(loss, {features.query_heads()}, "feature step: loss");
  require(loss.dtype() == DType::kF64, "feature step: loss: expected F64, found {}",
          name(loss.dtype()));
  const auto parts = feature_parts(features);
  const auto gradients = feature_parts(grad);
  const auto moment = feature_parts(moments);
  for (size_t i = 0; i < parts.size(); ++i) {
    const Tensor& part = *parts[i].second;
    if (!part.defined()) continue;
    require_shape(*gradients[i].second, part.shape(),
                  fmt::format("feature step: gradient of {}", parts[i].first));
    ++moment[i].second->steps;
  }
  return feature_step_backend(features.z.device())
      .feature_step(loss, grad, options, moments, features);
}

}  // namespace dofla
