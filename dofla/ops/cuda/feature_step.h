#pragma once

#include "dofla/ops/feature_step.h"

namespace dofla::cuda {

Tensor feature_step(const Tensor& loss, const Tensor& grad_z, const Tensor& grad_log_alpha,
                    const FeatureStepOptions& options, FeatureMoments& moments, Features& features);

}  // namespace dofla::cuda
