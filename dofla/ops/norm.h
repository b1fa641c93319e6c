// Normalisation of rows.
#pragma once

#include "dofla/core/tensor.h"

namespace dofla {

// (x − mean) / √(variance + epsilon) · weight + bias, over the last axis.
Tensor layer_norm(const Tensor& x,       // [..., C], F32
                  const Tensor& weight,  // [C], F32
                  const Tensor& bias,    // [C], F32, or undefined
                  double epsilon);

// x / √(mean(x²) + epsilon) · weight, over the last axis.
Tensor rms_norm(const Tensor& x,       // [..., C], F32
                const Tensor& weight,  // [C], F32
                double epsilon);

}  // namespace dofla
