#pragma once

#include "dofla/ops/feature_loss.h"

namespace dofla::cuda {

FeatureLoss feature_loss(const Tensor& q, const Tensor& k, const Features& features,
                         const FeatureLossOptions& options);

}  // namespace dofla::cuda
