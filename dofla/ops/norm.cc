#include "dofla/ops/norm.h"

namespace dofla {
namespace {

void require_backward(const Tensor& x, const Tensor& weight, const Tensor& grad_y,
                      const Tensor& addend, const Tensor* grad_weight, const Tensor* grad_bias,
                      const char* what) {
  require_shape(weight, {x.size(-1)}, fmt::format("{}: weight", what));
  require_shape(grad_y, x.shape(), fmt::format("{}: grad_y", what));
  if (addend.defined()) require_shape(addend, x.shape(), fmt::format("{}: addend", what));
  if (grad_weight != nullptr)
    require_shape(*grad_weight, weight.shape(), fmt::format("{}: grad_weight", what));
  if (grad_bias != nullptr)
    require_shape(*grad_bias, weight.shape(), fmt::format("{}: grad_bias", what));
}

const NormForward& forward(const Device& device) {
  return device.is_cuda() ? cuda::kNorm : cpu::kNorm;
}

const NormBackward& backward(const Device& device) {
  return device.is_cuda() ? cuda::kNormBackward : cpu::kNormBackward;
}

}  // namespace

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double epsilon) {
  require_shape(weight, {x.size(-1)}, "layer_norm: weight");
  if (bias.defined()) require_shape(bias, {x.size(-1)}, "layer_norm: bias");
  Tensor y(x.shape(), x.dtype(), x.device());
  forward(x.device()).layer_norm(x, weight, bias, epsilon, y);
  return y;
}

Tensor rms_norm(const Tensor& x, const Tensor& weight, double epsilon) {
  require_shape(weight, {x.size(-1)}, "rms_norm: weight");
  Tensor y(x.shape(), x.dtype(), x.device());
  forward(x.device()).rms_norm(x, weight, epsilon, y);
  return y;
}

Tensor layer_norm_backward(const Tensor& x, const Tensor& weight, double epsilon,
                           const Tensor& grad_y, Tensor* grad_weight, Tensor* grad_bias,
                           const Tensor& addend) {
  require_backward(x, weight, grad_y, addend, grad_weight, grad_bias, "layer_norm_backward");
  Tensor grad_x(x.shape(), x.dtype(), x.device());
  backward(x.device())
      .layer_norm(x, weight, epsilon, grad_y, addend, grad_x, grad_weight, grad_bias);
  return grad_x;
}

Tensor rms_norm_backward(const Tensor& x, const Tensor& weight, double epsilon,
                         const Tensor& grad_y, Tensor* grad_weight, const Tensor& addend) {
  require_backward(x, weight, grad_y, addend, grad_weight, nullptr, "rms_norm_backward");
  Tensor grad_x(x.shape(), x.dtype(), x.device());
  backward(x.device()).rms_norm(x, weight, epsilon, grad_y, addend, grad_x, grad_weight);
  return grad_x;
}

}  // namespace dofla
