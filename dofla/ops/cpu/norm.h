// Normalisation on the CPU; arguments are checked by ops/norm.cc.
#pragma once

#include "dofla/core/tensor.h"

namespace dofla::cpu {

void layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double epsilon,
                Tensor& y);
void rms_norm(const Tensor& x, const Tensor& weight, double epsilon, Tensor& y);

void layer_norm_backward(const Tensor& x, const Tensor& weight, double epsilon,
                         const Tensor& grad_y, Tensor& grad_x, Tensor* grad_weight,
                         Tensor* grad_bias);
void rms_norm_backward(const Tensor& x, const Tensor& weight, double epsilon, const Tensor& grad_y,
                       Tensor& grad_x, Tensor* grad_weight);

}  // namespace dofla::cpu
