// Adam on one element.
#pragma once

#include "dofla/ops/cuda/element_kernels.h"

namespace dofla::cuda {

__device__ inline void adam_element(const AdamFactors& f, float gradient, float& mean,
                                    float& square, float& parameter) {
  mean = fmaf(gradient - mean, 1 - f.beta1, mean);
  square = fmaf(gradient * gradient, 1 - f.beta2, square * f.beta2);
  const float root = fmaf(sqrtf(square), f.square_to_root, f.epsilon);
  parameter = parameter * f.keep - f.step * (mean / root);
}

}  // namespace dofla::cuda
