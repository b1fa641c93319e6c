#include "dofla/ops/cuda/activation.h"

#include "dofla/ops/cuda/element_kernels.h"
#include "dofla/ops/cuda/tensors.h"

namespace dofla::cuda {
namespace {

void activate(Nonlinearity f, Tensor& x) {
  cuda_check(launch_activation(f, element_of(x), x.count(), x.mutable_raw(), stream_of(x)),
             "activation");
}

void activate_backward(Nonlinearity f, const Tensor& x, Tensor& grad) {
  cuda_check(launch_activation_backward(f, element_of(x), x.count(), x.raw(), grad.mutable_raw(),
                                        stream_of(x)),
             "activation");
}

}  // namespace

void gelu(Tensor& x) {
  activate(Nonlinearity::kGelu, x);
}
void gelu_tanh(Tensor& x) {
  activate(Nonlinearity::kGeluTanh, x);
}
void silu(Tensor& x) {
  activate(Nonlinearity::kSilu, x);
}
void relu(Tensor& x) {
  activate(Nonlinearity::kRelu, x);
}

void gelu_backward(const Tensor& x, Tensor& grad) {
  activate_backward(Nonlinearity::kGelu, x, grad);
}
void gelu_tanh_backward(const Tensor& x, Tensor& grad) {
  activate_backward(Nonlinearity::kGeluTanh, x, grad);
}
void silu_backward(const Tensor& x, Tensor& grad) {
  activate_backward(Nonlinearity::kSilu, x, grad);
}
void relu_backward(const Tensor& x, Tensor& grad) {
  activate_backward(Nonlinearity::kRelu, x, grad);
}

void multiply(Tensor& x, const Tensor& y) {
  cuda_check(launch_multiply(element_of(x), x.count(), y.raw(), x.mutable_raw(), stream_of(x)),
             "multiply");
}

void add(Tensor& x, const Tensor& y) {
  cuda_check(launch_add(element_of(x), x.count(), y.raw(), x.mutable_raw(), stream_of(x)), "add");
}

}  // namespace dofla::cuda
