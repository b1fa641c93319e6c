#include "dofla/ops/feature_step.h"

#include "dofla/ops/cuda/feature_step_kernels.h"
#include "dofla/ops/cuda/tensors.h"

namespace dofla::cuda {
namespace {

Tensor feature_step(const Tensor& loss, const Tensor& grad_z, const Tensor& grad_log_alpha,
                    const FeatureStepOptions& options, FeatureMoments& moments,
                    Features& features) {
  Tensor norms({features.heads()}, DType::kF64, features.z.device());
  const FeatureStepArguments arguments = {
      .heads = features.heads(),
      .width = features.z.size(1),
      .offsets = static_cast<const int64_t*>(features.gpu_offsets.raw()),
      .loss = static_cast<const double*>(loss.raw()),
      .grad_z = floats(grad_z),
      .grad_log_alpha = floats(grad_log_alpha),
      .norms = static_cast<double*>(norms.mutable_raw()),
      .z_factors = adam_factors({.learning_rate = options.lr_z}, moments.z.steps),
      .log_alpha_factors =
          adam_factors({.learning_rate = options.lr_alpha}, moments.log_alpha.steps),
      .z_mean = mutable_floats(moments.z.mean),
      .z_square = mutable_floats(moments.z.square),
      .z = mutable_floats(features.z),
      .log_alpha_mean = mutable_floats(moments.log_alpha.mean),
      .log_alpha_square = mutable_floats(moments.log_alpha.square),
      .log_alpha = mutable_floats(features.log_alpha)};
  cuda_check(launch_feature_step(arguments, stream_of(features.z)), "feature step");
  return norms;
}

}  // namespace

const FeatureStepBackend kFeatureStep = {.feature_step = feature_step};

}  // namespace dofla::cuda
