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

}  // namespace

const ActivationBackend kActivation = {.activate = activate,
                                       .activate_backward = activate_backward,
                                       .multiply = multiply,
                                       .add = add,
                                       .subtract = subtract};

}  // namespace dofla::cuda
