#include "dofla/ops/activation.h"

namespace dofla {
namespace {

const ActivationBackend& activation_backend(const Device& device) {
  return device.is_cuda() ? cuda::kActivation : cpu::kActivation;
}

}  // namespace

void activate(Activation activation, Tensor& x) {
  activation_backend(x.device()).activate(activation, x);
}

void activate_backward(Activation activation, const Tensor& x, Tensor& grad) {
  require_shape(grad, x.shape(), "activate_backward");
  activation_backend(x.device()).activate_backward(activation, x, grad);
}

void multiply(Tensor& x, const Tensor& y) {
  require_shape(y, x.shape(), "multiply");
  activation_backend(x.device()).multiply(x, y);
}

void add(Tensor& x, const Tensor& y) {
  require_shape(y, x.shape(), "add");
  activation_backend(x.device()).add(x, y);
}

void subtract(float factor, const Tensor& y, Tensor& x) {
  require_shape(y, x.shape(), "subtract");
  activation_backend(x.device()).subtract(factor, y, x);
}

}  // namespace dofla
