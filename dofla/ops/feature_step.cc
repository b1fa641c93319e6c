#include "dofla/ops/feature_step.h"

namespace dofla {
namespace {

const FeatureStepBackend& backend(const Device& device) {
  return device.is_cuda() ? cuda::kFeatureStep : cpu::kFeatureStep;
}

}  // namespace

FeatureMoments new_feature_moments(const Features& features) {
  return {new_adam_moments(features.z), new_adam_moments(features.log_alpha)};
}

Tensor feature_step(const Tensor& loss, const Tensor& grad_z, const Tensor& grad_log_alpha,
                    const FeatureStepOptions& options, FeatureMoments& moments,
                    Features& features) {
  require_valid(features, features.z.size(1));
  require_shape(loss, {features.heads()}, "feature step: loss");
  require(loss.dtype() == DType::kF64, "feature step: loss: expected F64, found {}",
          name(loss.dtype()));
  require_shape(grad_z, features.z.shape(), "feature step: gradient of z");
  require_shape(grad_log_alpha, features.log_alpha.shape(), "feature step: gradient of log alpha");
  ++moments.z.steps;
  ++moments.log_alpha.steps;
  return backend(features.z.device())
      .feature_step(loss, grad_z, grad_log_alpha, options, moments, features);
}

}  // namespace dofla
