#include "dofla/ops/norm.h"

#include "dofla/ops/cuda/norm_kernels.h"
#include "dofla/ops/cuda/tensors.h"

namespace dofla::cuda {
namespace {

NormArguments arguments(const Tensor& x, const Tensor& weight, double epsilon, bool centre) {
  const int64_t width = x.size(-1);
  return {element_of(x), x.count() / width, width,         static_cast<float>(epsilon),
          centre,        x.raw(),           floats(weight)};
}

void norm_backward(const NormArguments& how, const Tensor& grad_y, Tensor& grad_x,
                   Tensor* grad_weight, Tensor* grad_bias) {
  Tensor statistics({how.rows, 2}, DType::kF32, grad_y.device());
  cuda_check(launch_norm_backward(how, grad_y.raw(), grad_x.mutable_raw(),
                                  mutable_floats(statistics), stream_of(grad_y)),
             "norm backward");
  if (grad_weight == nullptr && grad_bias == nullptr) return;
  cuda_check(launch_norm_weight_backward(
                 how, grad_y.raw(), floats(statistics),
                 grad_weight == nullptr ? nullptr : mutable_floats(*grad_weight),
                 grad_bias == nullptr ? nullptr : mutable_floats(*grad_bias), stream_of(grad_y)),
             "norm backward");
}

void layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double epsilon,
                Tensor& y) {
  cuda_check(
      launch_norm(arguments(x, weight, epsilon, true), floats(bias), y.mutable_raw(), stream_of(x)),
      "layer norm");
}

void rms_norm(const Tensor& x, const Tensor& weight, double epsilon, Tensor& y) {
  cuda_check(
      launch_norm(arguments(x, weight, epsilon, false), nullptr, y.mutable_raw(), stream_of(x)),
      "RMS norm");
}

void layer_norm_backward(const Tensor& x, const Tensor& weight, double epsilon,
                         const Tensor& grad_y, Tensor& grad_x, Tensor* grad_weight,
                         Tensor* grad_bias) {
  norm_backward(arguments(x, weight, epsilon, true), grad_y, grad_x, grad_weight, grad_bias);
}

void rms_norm_backward(const Tensor& x, const Tensor& weight, double epsilon, const Tensor& grad_y,
                       Tensor& grad_x, Tensor* grad_weight) {
  norm_backward(arguments(x, weight, epsilon, false), grad_y, grad_x, grad_weight, nullptr);
}

}  // namespace

const NormForward kNorm = {.layer_norm = layer_norm, .rms_norm = rms_norm};
const NormBackward kNormBackward = {.layer_norm = layer_norm_backward,
                                    .rms_norm = rms_norm_backward};

}  // namespace dofla::cuda
