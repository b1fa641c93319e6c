#include "dofla/ops/adam.h"

#include <cmath>
#include <numeric>

#include "dofla/core/random.h"

namespace dofla {
namespace {

void require_f32(const Tensor& tensor, const char* what) {
  require(tensor.dtype() == DType::kF32, "adam: {}: expected F32, found {}", what,
          name(tensor.dtype()));
}

const AdamBackend& adam_backend(const Device& device) {
  return device.is_cuda() ? cuda::kAdam : cpu::kAdam;
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

void adam_step(const Tensor& gradient, const AdamOptions& options, AdamMoments& moments,
               Tensor& parameter) {
  require_shape(gradient, parameter.shape(), "adam: gradient");
  require_shape(moments.mean, parameter.shape(), "adam: mean");
  require_shape(moments.square, parameter.shape(), "adam: square");
  require_f32(parameter, "parameter");
  require_f32(gradient, "gradient");
  if (moments.mean.dtype() != DType::kBF16) require_f32(moments.mean, "mean");
  require(moments.square.dtype() == moments.mean.dtype(), "adam: square: expected {}, found {}",
          name(moments.mean.dtype()), name(moments.square.dtype()));
  require(options.beta1 >= 0 && options.beta1 < 1 && options.beta2 >= 0 && options.beta2 < 1,
          "adam: expected betas in [0, 1), found {} and {}", options.beta1, options.beta2);
  ++moments.steps;
  adam_backend(parameter.device()).adam_step(gradient, options, moments, parameter);
}

double global_norm(std::span<const Tensor> gradients) {
  if (gradients.empty()) return 0;
  const Device& device = gradients.front().device();
  for (const Tensor& gradient : gradients) {
    require_f32(gradient, "gradient");
    require(gradient.device() == device, "adam: gradients on several devices");
  }
  const auto squares = adam_backend(device).sum_of_squares;
  return std::sqrt(squares(gradients));
}

double total_squares(std::span<const std::vector<double>> blocks_of_gradients) {
  double sum = 0;
  for (const std::vector<double>& blocks : blocks_of_gradients)
    sum += std::accumulate(blocks.begin(), blocks.end(), 0.0);
  return sum;
}

void clip_norm(double norm, double max_norm, std::span<Tensor> gradients) {
  require(max_norm > 0, "adam: expected a maximal norm above 0, found {}", max_norm);
  if (!std::isfinite(norm) || norm <= max_norm) return;
  for (Tensor& gradient : gradients)
    adam_backend(gradient.device()).scale(static_cast<float>(max_norm / norm), gradient);
}

double clip_by_global_norm(double max_norm, std::span<Tensor> gradients) {
  const double norm = global_norm(gradients);
  clip_norm(norm, max_norm, gradients);
  return norm;
}

}  // namespace dofla
