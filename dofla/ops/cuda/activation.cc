#include "dofla/ops/cuda/activation.h"

#include "dofla/ops/cuda/element_kernels.h"
#include "dofla/ops/cuda/tensors.h"

namespace dofla::cuda {
namespace {

void activate(Nonlinearity f, Tensor& x) {
  cuda_check(launch_activation(f, element_of(x), x.count(), x.mutable_raw(), stream_of(x)),
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

void multiply(Tensor& x, const Tensor& y) {
  cuda_check(launch_multiply(element_of(x), x.count(), y.raw(), x.mutable_raw(), stream_of(x)),
             "multiply");
}

void add(Tensor& x, const Tensor& y) {
  cuda_check(launch_add(element_of(x), x.count(), y.raw(), x.mutable_raw(), stream_of(x)), "add");
}

}  // namespace dofla::cuda
