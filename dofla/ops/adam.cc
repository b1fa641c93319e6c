#include "dofla/ops/adam.h"

#include <cmath>

#include "dofla/core/random.h"

namespace dofla {
namespace {

const AdamBackend& adam_backend(const Device& device) {
  return device.is_cuda() ? cuda::kAdam : cpu::kAdam;
}

void require_f32(const Tensor& tensor, const char* what) {
  require(tensor.dtype() == DType::kF32, "adam: {}: expected F32, found {}", what,
          name(tensor.dtype()));
}

void require_like(const Tensor& tensor, const Tensor& value, const char* what) {
  require(tensor.count() == value.count() && tensor.device() == value.device(),
          "adam: {}: {} elements on {}, the parameter has {} on {}", what, tensor.count(),
          tensor.device().name(), value.count(), value.device().name());
}

void require_valid(const AdamParameter& parameter, const AdamParameter& first) {
  const auto& [value, gradient, moments, options, copy] = parameter;
  require_f32(value, "parameter");
  require_like(gradient, value, "gradient");
  require_f32(gradient, "gradient");
  require_like(moments.mean, value, "mean");
  require_like(moments.square, value, "square");
  if (moments.mean.dtype() != DType::kBF16) require_f32(moments.mean, "mean");
  for (const Tensor* moment : {&moments.square, &first.moments.mean})
    require(moment->dtype() == moments.mean.dtype(), "adam: moments in {} and {}",
            name(moment->dtype()), name(moments.mean.dtype()));
  if (copy.defined()) {
    require_like(copy, value, "copy");
    require(copy.dtype() == DType::kBF16, "adam: copy: expected BF16, found {}",
            name(copy.dtype()));
  }
  require(value.device() == first.value.device(), "adam: parameters on several devices");
  require(options.beta1 >= 0 && options.beta1 < 1 && options.beta2 >= 0 && options.beta2 < 1,
          "adam: expected betas in [0, 1), found {} and {}", options.beta1, options.beta2);
}

void require_gradients(std::span<const Tensor> gradients) {
  for (const Tensor& gradient : gradients) {
    require_f32(gradient, "gradient");
    require(gradient.device() == gradients.front().device(), "adam: gradients on several devices");
  }
}

bool is_finite(const Tensor& norm) {
  return std::isfinite(norm.to(Device()).data<double>()[0]);
}

}  // namespace

AdamMoments new_adam_moments(const Tensor& parameter, DType dtype) {
  const auto zeros = [&] { return Tensor::zeros(parameter.shape(), dtype, parameter.device()); };
  return {.mean = zeros(), .square = zeros()};
}

AdamChance adam_chance(const AdamMoments& moments) {
  return {mixed(moments.seed + mixed(static_cast<uint64_t>(moments.steps))), moments.first};
}

AdamFactors adam_factors(const AdamOptions& options, int64_t step) {
  const auto t = static_cast<double>(step);
  return {static_cast<float>(options.beta1),
          static_cast<float>(options.beta2),
          static_cast<float>(options.epsilon),
          static_cast<float>(1 - options.learning_rate * options.weight_decay),
          static_cast<float>(options.learning_rate / (1 - std::pow(options.beta1, t))),
          static_cast<float>(1 / std::sqrt(1 - std::pow(options.beta2, t)))};
}

Tensor block_squares(std::span<const Tensor> gradients) {
  if (gradients.empty()) return Tensor({0}, DType::kF64);
  require_gradients(gradients);
  return adam_backend(gradients.front().device()).block_squares(gradients);
}

Tensor norm_of_blocks(const Tensor& squares, std::span<const Tensor> gradients) {
  int64_t blocks = 0;
  for (const Tensor& gradient : gradients) blocks += squares_blocks(gradient.count());
  require_shape(squares, {blocks}, "adam: squares of blocks");
  return adam_backend(squares.device()).norm_of_blocks(squares, gradients);
}

Tensor gradient_norm(std::span<const Tensor> gradients) {
  return norm_of_blocks(block_squares(gradients), gradients);
}

bool adam_step(std::span<AdamParameter> parameters, const Tensor& norm, double max_norm) {
  if (parameters.empty()) return !norm.defined() || is_finite(norm);
  for (const AdamParameter& parameter : parameters) require_valid(parameter, parameters.front());
  if (norm.defined()) {
    require_shape(norm, {1}, "adam: norm");
    require(norm.device() == parameters.front().value.device(), "adam: a norm elsewhere");
    require(max_norm > 0, "adam: expected a maximal norm above 0, found {}", max_norm);
  }
  for (AdamParameter& parameter : parameters) ++parameter.moments.steps;
  adam_backend(parameters.front().value.device()).step(parameters, norm, max_norm);
  if (!norm.defined() || is_finite(norm)) return true;
  for (AdamParameter& parameter : parameters) --parameter.moments.steps;
  return false;
}

}  // namespace dofla
