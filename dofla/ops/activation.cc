#include "dofla/ops/activation.h"

#include "dofla/ops/cpu/activation.h"
#include "dofla/ops/cuda/activation.h"

namespace dofla {

void activate(Activation activation, Tensor& x) {
  x.device().is_cuda() ? cuda::activate(activation, x) : cpu::activate(activation, x);
}

void activate_backward(Activation activation, const Tensor& x, Tensor& grad) {
  require_shape(grad, x.shape(), "activate_backward");
  x.device().is_cuda() ? cuda::activate_backward(activation, x, grad)
                       : cpu::activate_backward(activation, x, grad);
}

void multiply(Tensor& x, const Tensor& y) {
  require_shape(y, x.shape(), "multiply");
  x.device().is_cuda() ? cuda::multiply(x, y) : cpu::multiply(x, y);
}

void add(Tensor& x, const Tensor& y) {
  require_shape(y, x.shape(), "add");
  x.device().is_cuda() ? cuda::add(x, y) : cpu::add(x, y);
}

}  // namespace dofla
