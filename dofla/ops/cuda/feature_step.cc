#include "dofla/ops/feature_step.h"

#include "dofla/ops/cuda/feature_step_kernels.h"
#include "dofla/ops/cuda/tensors.h"

namespace dofla::cuda {
namespace {

// Elements of a part that belong to one feature of a head; 0 where they belong to the head.
int64_t elements_a_feature(std::string_view part, const Features& features) {
  if (part == "norm_weight") return 0;
  if (part == "log_alpha") return 1;
  return (part == "u" ? features.group() : 1) * features.z.size(1);
}

Tensor feature_step(const Tensor& loss, const FeatureGradients& grad,
                    const FeatureStepOptions& options, FeatureMoments& moments,
                    Features& features) {
  Tensor norms({features.heads()}, DType::kF64, features.z.device());
  FeatureStepArguments arguments = {
      .heads = features.heads(),
      .group = features.group(),
      .offsets = static_cast<const int64_t*>(features.gpu_offsets.raw()),
      .loss = static_cast<const double*>(loss.raw()),
      .norms = static_cast<double*>(norms.mutable_raw()),
      .parts = {}};
  const auto values = dofla::feature_parts(features);
  const auto gradients = dofla::feature_parts(grad);
  const auto moment = dofla::feature_parts(moments);
  for (size_t i = 0; i < values.size(); ++i) {
    const auto& [name, value] = values[i];
    if (!value->defined()) continue;
    AdamMoments& moved = *moment[i].second;
    arguments.parts[i] = {
        adam_factors({.learning_rate = learning_rate(options, name)}, moved.steps),
        elements_a_feature(name, features),
        floats(*gradients[i].second),
        mutable_floats(moved.mean),
        mutable_floats(moved.square),
        mutable_floats(*value)};
  }
  cuda_check(launch_feature_step(arguments, stream_of(features.z)), "feature step");
  return norms;
}

}  // namespace

const FeatureStepBackend kFeatureStep = {.feature_step = feature_step};

}  // namespace dofla::cuda
