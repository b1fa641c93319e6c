// Nonlinearities on the CPU; arguments are checked by ops/activation.cc.
#pragma once

#include "dofla/core/tensor.h"

namespace dofla::cpu {

void gelu(Tensor& x);
void gelu_tanh(Tensor& x);
void silu(Tensor& x);
void relu(Tensor& x);
void gelu_backward(const Tensor& x, Tensor& grad);
void gelu_tanh_backward(const Tensor& x, Tensor& grad);
void silu_backward(const Tensor& x, Tensor& grad);
void relu_backward(const Tensor& x, Tensor& grad);
void multiply(Tensor& x, const Tensor& y);
void add(Tensor& x, const Tensor& y);

}  // namespace dofla::cpu
