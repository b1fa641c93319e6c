#include "dofla/ops/activation.h"

#include "dofla/ops/cuda/element_kernels.h"
#include "dofla/ops/cuda/tensors.h"

namespace dofla::cuda {
namespace {

void activate(Activation activation, Tensor& x) {
  cuda_check(launch_activation(activation, element_of(x), x.count(), x.mutable_raw(), stream_of(x)),
             "activation");
}

void activate_backward(Activation activation, const Tensor& x, Tensor& grad) {
  cuda_check(launch_activation_backward(activation, element_of(x), x.count(), x.raw(),
                                        grad.mutable_raw(), stream_of(x)),
             "activation");
}

// Kernels see one type.
Element common_element(const Tensor& x, const Tensor& y) {
  require(!y.defined() || y.dtype() == x.dtype(), "gate: {} and {}", name(x.dtype()),
          name(y.dtype()));
  return element_of(x);
}

void gate(Activation f, const Tensor& inner, const Tensor& gated, Tensor& result) {
  cuda_check(launch_gate(f, common_element(inner, gated), inner.count(), inner.raw(), gated.raw(),
                         result.mutable_raw(), stream_of(inner)),
             "gate");
}

void gate_backward(Activation f, const Tensor& inner, const Tensor& gated, Tensor& grad,
                   Tensor& grad_gated, Tensor* result) {
  common_element(inner, grad);
  cuda_check(
      launch_gate_backward(f, common_element(inner, gated), inner.count(), inner.raw(), gated.raw(),
                           grad.mutable_raw(), grad_gated.mutable_raw(),
                           result == nullptr ? nullptr : result->mutable_raw(), stream_of(inner)),
      "gate backward");
}

void multiply(Tensor& x, const Tensor& y) {
  cuda_check(launch_multiply(element_of(x), x.count(), y.raw(), x.mutable_raw(), stream_of(x)),
             "multiply");
}

void add(Tensor& x, const Tensor& y) {
  cuda_check(launch_add(element_of(x), x.count(), y.raw(), x.mutable_raw(), stream_of(x)), "add");
}

void subtract(float factor, const Tensor& y, Tensor& x) {
  cuda_check(
      launch_subtract(factor, element_of(x), x.count(), y.raw(), x.mutable_raw(), stream_of(x)),
      "subtract");
}

void scale(float factor, Tensor& x) {
  cuda_check(launch_scale(factor, element_of(x), x.count(), x.mutable_raw(), stream_of(x)),
             "scale");
}

}  // namespace

const ActivationBackend kActivation = {.activate = activate,
                                       .activate_backward = activate_backward,
                                       .multiply = multiply,
                                       .add = add,
                                       .subtract = subtract,
                                       .scale = scale,
                                       .gate = gate,
                                       .gate_backward = gate_backward};

}  // namespace dofla::cuda
