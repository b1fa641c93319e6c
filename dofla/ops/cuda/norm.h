// Normalisation on a GPU; arguments are checked by ops/norm.cc.
#pragma once

#include "dofla/core/tensor.h"

namespace dofla::cuda {

void layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double epsilon,
                Tensor& y);
void rms_norm(const Tensor& x, const Tensor& weight, double epsilon, Tensor& y);

}  // namespace dofla::cuda
