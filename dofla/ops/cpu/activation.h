// Nonlinearities on the CPU; arguments are checked by ops/activation.cc.
#pragma once

#include "dofla/core/activation.h"
#include "dofla/core/tensor.h"

namespace dofla::cpu {

void activate(Activation activation, Tensor& x);
void activate_backward(Activation activation, const Tensor& x, Tensor& grad);
void multiply(Tensor& x, const Tensor& y);
void add(Tensor& x, const Tensor& y);

}  // namespace dofla::cpu
