#include "dofla/ops/activation.h"

#include "dofla/ops/cpu/activation.h"
#include "dofla/ops/cuda/activation.h"

namespace dofla {

void gelu(Tensor& x) {
  x.device().is_cuda() ? cuda::gelu(x) : cpu::gelu(x);
}
void gelu_tanh(Tensor& x) {
  x.device().is_cuda() ? cuda::gelu_tanh(x) : cpu::gelu_tanh(x);
}
void silu(Tensor& x) {
  x.device().is_cuda() ? cuda::silu(x) : cpu::silu(x);
}
void relu(Tensor& x) {
  x.device().is_cuda() ? cuda::relu(x) : cpu::relu(x);
}

void gelu_backward(const Tensor& x, Tensor& grad) {
  require_shape(grad, x.shape(), "gelu_backward");
  x.device().is_cuda() ? cuda::gelu_backward(x, grad) : cpu::gelu_backward(x, grad);
}
void gelu_tanh_backward(const Tensor& x, Tensor& grad) {
  require_shape(grad, x.shape(), "gelu_tanh_backward");
  x.device().is_cuda() ? cuda::gelu_tanh_backward(x, grad) : cpu::gelu_tanh_backward(x, grad);
}
void silu_backward(const Tensor& x, Tensor& grad) {
  require_shape(grad, x.shape(), "silu_backward");
  x.device().is_cuda() ? cuda::silu_backward(x, grad) : cpu::silu_backward(x, grad);
}
void relu_backward(const Tensor& x, Tensor& grad) {
  require_shape(grad, x.shape(), "relu_backward");
  x.device().is_cuda() ? cuda::relu_backward(x, grad) : cpu::relu_backward(x, grad);
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
