#include "dofla/ops/norm.h"

#include "dofla/ops/cuda/column_sum_kernels.h"
#include "dofla/ops/cuda/norm_kernels.h"
#include "dofla/ops/cuda/tensors.h"

namespace dofla::cuda {
namespace {

NormArguments arguments(const Tensor& x, const Tensor& weight, double epsilon, bool centre) {
  const int64_t width = x.size(-1);
  return {element_of(x), x.count() / width, width,         static_cast<float>(epsilon),
          centre,        x.raw(),           floats(weight)};
}

void norm_backward(const NormArguments& how, const Tensor& grad_y, const Tensor& addend,
                   Tensor& grad_x, Tensor* grad_weight, Tensor* grad_bias) {
  const bool with_bias = grad_bias != nullptr, wanted = with_bias || grad_weight != nullptr;
  const int64_t blocks = norm_backward_blocks(how);
  Tensor sums;
  if (wanted) sums = Tensor({blocks, with_bias ? 2 : 1, how.width}, DType::kF32, grad_y.device());
  const NormGradient gradient = {.grad_y = grad_y.raw(),
                                 .addend = addend.raw(),
                                 .grad_x = grad_x.mutable_raw(),
                                 .sums = wanted ? mutable_floats(sums) : nullptr,
                                 .with_bias = with_bias};
  cuda_check(launch_norm_backward(how, gradient, stream_of(grad_y)), "norm backward");
  if (!wanted) return;
  cuda_check(launch_add_sums(floats(sums), blocks, how.width,
                             grad_weight == nullptr ? nullptr : mutable_floats(*grad_weight),
                             with_bias ? mutable_floats(*grad_bias) : nullptr, stream_of(grad_y)),
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
                         const Tensor& grad_y, const Tensor& addend, Tensor& grad_x,
                         Tensor* grad_weight, Tensor* grad_bias) {
  norm_backward(arguments(x, weight, epsilon, true), grad_y, addend, grad_x, grad_weight,
                grad_bias);
}

void rms_norm_backward(const Tensor& x, const Tensor& weight, double epsilon, const Tensor& grad_y,
                       const Tensor& addend, Tensor& grad_x, Tensor* grad_weight) {
  norm_backward(arguments(x, weight, epsilon, false), grad_y, addend, grad_x, grad_weight, nullptr);
}

}  // namespace

const NormForward kNorm = {.layer_norm = layer_norm, .rms_norm = rms_norm};
const NormBackward kNormBackward = {.layer_norm = layer_norm_backward,
                                    .rms_norm = rms_norm_backward};

}  // namespace dofla::cuda
