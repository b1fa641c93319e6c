// Nonlinearities on a GPU; arguments are checked by ops/activation.cc.
#pragma once

#include "dofla/core/activation.h"
#include "dofla/core/tensor.h"

namespace dofla::cuda {

void activate(Activation activation, Tensor& x);
void activate_backward(Activation activation, const Tensor& x, Tensor& grad);
void multiply(Tensor& x, const Tensor& y);
void add(Tensor& x, const Tensor& y);

}  // namespace dofla::cuda
