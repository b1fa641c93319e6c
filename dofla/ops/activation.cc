#include "dofla/ops/activation.h"

#include "dofla/ops/cpu/activation.h"

namespace dofla {

void gelu(Tensor& x) {
  cpu::gelu(x);
}
void gelu_tanh(Tensor& x) {
  cpu::gelu_tanh(x);
}
void silu(Tensor& x) {
  cpu::silu(x);
}
void relu(Tensor& x) {
  cpu::relu(x);
}

void gelu_backward(const Tensor& x, Tensor& grad) {
  require_shape(grad, x.shape(), "gelu_backward");
  cpu::gelu_backward(x, grad);
}
void gelu_tanh_backward(const Tensor& x, Tensor& grad) {
  require_shape(grad, x.shape(), "gelu_tanh_backward");
  cpu::gelu_tanh_backward(x, grad);
}
void silu_backward(const Tensor& x, Tensor& grad) {
  require_shape(grad, x.shape(), "silu_backward");
  cpu::silu_backward(x, grad);
}
void relu_backward(const Tensor& x, Tensor& grad) {
  require_shape(grad, x.shape(), "relu_backward");
  cpu::relu_backward(x, grad);
}

void multiply(Tensor& x, const Tensor& y) {
  require_shape(y, x.shape(), "multiply");
  cpu::multiply(x, y);
}

void add(Tensor& x, const Tensor& y) {
  require_shape(y, x.shape(), "add");
  cpu::add(x, y);
}

}  // namespace dofla
