#pragma once

#include "dofla/ops/adam.h"

namespace dofla::cuda {

void adam_step(const Tensor& gradient, const AdamOptions& options, AdamMoments& moments,
               Tensor& parameter);

}  // namespace dofla::cuda
