#include "dofla/ops/matmul.h"

#include "dofla/ops/activation.h"

namespace dofla {
namespace {

const MatmulBackend& matmul_backend(const Device& device) {
  return device.is_cuda() ? cuda::kMatmul : cpu::kMatmul;
}

bool can_fuse_gelu(const MatmulBackend& device, int64_t columns) {
  return device.matmul_gelu_tanh != nullptr && columns % device.gelu_columns == 0;
}

}  // namespace

void require_fits(const Tensor& x, const Linear& linear) {
  // A decoder comes here for every token, and wants no message unless it is needed.
  if (x.rank() != 2 || linear.weight.rank() != 2 || x.size(1) != linear.inputs())
    throw std::invalid_argument(fmt::format("matmul: x {} meets a weight {}{}",
                                            to_string(x.shape()), to_string(linear.weight.shape()),
                                            linear.input_major ? ", inputs first" : ""));
  if (linear.bias.defined()) require_shape(linear.bias, {linear.outputs()}, "matmul: bias");
}

void require_gradient_fits(const Tensor& x, const Linear& gradient) {
  require_fits(x, gradient);
  require(gradient.weight.dtype() == DType::kF32, "weight gradient: expected F32, found {}",
          name(gradient.weight.dtype()));
}

Linear transposed(const Linear& linear) {
  return {.weight = linear.weight, .input_major = !linear.input_major, .bias = {}};
}

Tensor matmul(const Tensor& x, const Linear& linear, std::optional<DType> result) {
  require_fits(x, linear);
  Tensor y({x.size(0), linear.outputs()}, result.value_or(x.dtype()), x.device());
  matmul_backend(x.device()).matmul(x, linear, y);
  return y;
}

Tensor matmul_add(const Tensor& x, const Linear& linear, const Tensor& addend) {
  require_fits(x, linear);
  require_shape(addend, {x.size(0), linear.outputs()}, "matmul: addend");
  if (const auto fused = matmul_backend(x.device()).matmul_add) {
    Tensor y(addend.shape(), x.dtype(), x.device());
    fused(x, linear, addend, y);
    return y;
  }
  Tensor y = matmul(x, linear);
  add(y, addend);
  return y;
}

Tensor matmul_gelu_tanh(const Tensor& x, const Linear& linear, Tensor* inner) {
  require_fits(x, linear);
  const MatmulBackend& device = matmul_backend(x.device());
  if (can_fuse_gelu(device, linear.outputs())) {
    Tensor y({x.size(0), linear.outputs()}, x.dtype(), x.device());
    if (inner != nullptr) *inner = Tensor(y.shape(), y.dtype(), y.device());
    device.matmul_gelu_tanh(x, linear, y, inner);
    return y;
  }
  Tensor y = matmul(x, linear);
  if (inner != nullptr) *inner = y.clone();
  activate(Activation::kGeluTanh, y);
  return y;
}

Tensor matmul_backward(const Tensor& grad_y, const Linear& linear) {
  return matmul(grad_y, transposed(linear));
}

Tensor matmul_gelu_tanh_backward(const Tensor& grad_y, const Linear& linear, const Tensor& inner) {
  const Linear back = transposed(linear);
  require_fits(grad_y, back);
  require_shape(inner, {grad_y.size(0), back.outputs()}, "matmul: inner");
  const MatmulBackend& device = matmul_backend(grad_y.device());
  if (can_fuse_gelu(device, back.outputs())) {
    Tensor grad(inner.shape(), inner.dtype(), inner.device());
    device.matmul_gelu_tanh_backward(grad_y, back, inner, grad);
    return grad;
  }
  Tensor grad = matmul(grad_y, back);
  activate_backward(Activation::kGeluTanh, inner, grad);
  return grad;
}

void add_weight_gradient(const Tensor& x, const Tensor& grad_y, Linear& gradient) {
  require_gradient_fits(x, gradient);
  require_shape(grad_y, {x.size(0), gradient.outputs()}, "weight gradient: grad_y");
  matmul_backend(x.device()).add_weight_gradient(x, grad_y, gradient);
}

}  // namespace dofla
