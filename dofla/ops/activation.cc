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

Tensor activated(Activation activation, const Tensor& x) {
  if (const auto fused = activation_backend(x.device()).gate) {
    Tensor result(x.shape(), x.dtype(), x.device());
    fused(activation, x, Tensor(), result);
    return result;
  }
  Tensor result = x.clone();
  activate(activation, result);
  return result;
}

Tensor gate(Activation f, const Tensor& inner, const Tensor& gated) {
  require_shape(gated, inner.shape(), "gate");
  if (const auto fused = activation_backend(inner.device()).gate) {
    Tensor result(inner.shape(), inner.dtype(), inner.device());
    fused(f, inner, gated, result);
    return result;
  }
  Tensor result = activated(f, inner);
  multiply(result, gated);
  return result;
}

GateGradients gate_backward(Activation f, const Tensor& inner, const Tensor& gated, Tensor grad,
                            Tensor* result) {
  require_shape(gated, inner.shape(), "gate backward");
  require_shape(grad, inner.shape(), "gate backward");
  if (const auto fused = activation_backend(inner.device()).gate_backward) {
    Tensor grad_gated(inner.shape(), inner.dtype(), inner.device());
    if (result != nullptr) *result = Tensor(inner.shape(), inner.dtype(), inner.device());
    fused(f, inner, gated, grad, grad_gated, result);
    return {grad, grad_gated};
  }
  Tensor received = activated(f, inner), grad_gated = grad.clone();
  multiply(grad_gated, received);
  multiply(grad, gated);
  activate_backward(f, inner, grad);
  if (result != nullptr) {
    multiply(received, gated);
    *result = received;
  }
  return {grad, grad_gated};
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

void scale(float factor, Tensor& x) {
  activation_backend(x.device()).scale(factor, x);
}

}  // namespace dofla
