// Adam with bias correction and, where weight_decay is not 0, decoupled decay (AdamW); the same
// arithmetic as PyTorch's optimizers of these names. All tensors of a model make a step at once,
// and their gradients are clipped by their common norm.
#pragma once

#include <span>

#include "dofla/core/tensor.h"
#include "dofla/ops/adam_factors.h"

namespace dofla {

struct AdamOptions {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
};

// What Adam remembers of one parameter. Plain data: save it to resume. Moments in BF16 are rounded
// up or down by chance, so that they are right in the mean (docs/finetune.md, "16-bit moments").
// The chance is that of the seed, the step and the number of an element: a parameter that is held
// in parts has the bits of a whole one.
struct AdamMoments {
  Tensor mean;    // running mean of the gradient, shaped like the parameter, F32 or BF16
  Tensor square;  // running mean of its square
  int64_t steps = 0;
  uint64_t seed = 0;
  int64_t first = 0;  // the number of the first element
};

// On the parameter's device.
AdamMoments new_adam_moments(const Tensor& parameter, DType dtype = DType::kF32);

AdamFactors adam_factors(const AdamOptions& options, int64_t step);  // of step 1, 2, …
AdamChance adam_chance(const AdamMoments& moments);                  // of the step just counted

// A tensor that a step moves. Value, gradient and moments have as many elements.
struct AdamParameter {
  Tensor value;     // F32
  Tensor gradient;  // F32
  AdamMoments moments;
  AdamOptions options = {};
  Tensor copy = {};  // of the value, in BF16: written with it; or undefined
};

// The Euclidean norm of all gradients together, [1] in F64 on their device, where nothing waits for
// it; not finite if any of them is not.
Tensor gradient_norm(std::span<const Tensor> gradients);

// The same in two steps, for gradients of which others hold some: sums of squares of every
// kSquaresBlock elements of a gradient, [N] in F64, and the norm of all gradients from those of
// their blocks, one gradient after another. The same bits, whoever has made which sums.
constexpr int64_t squares_blocks(int64_t elements) {
  return (elements + kSquaresBlock - 1) / kSquaresBlock;
}
Tensor block_squares(std::span<const Tensor> gradients);
Tensor norm_of_blocks(const Tensor& squares, std::span<const Tensor> gradients);

// One step of all parameters, which are on one device and have moments of one type. With the norm
// of their gradients, these count as scaled so that it is at most max_norm; they are only read.
// False if the norm is not finite: then nothing has changed, not even the count of steps. Waits for
// the norm, if there is one, when the GPU has all of its work.
bool adam_step(std::span<AdamParameter> parameters,
               const Tensor& norm = {},  // [1] in F64, on their device, or undefined
               double max_norm = 0);

// What a step multiplies gradients of this finite norm by.
inline float clip_factor(double norm, double max_norm) {
  return norm > max_norm ? static_cast<float>(max_norm / norm) : 1;
}

// What a device has to implement; ops/adam.cc checks the arguments and picks the device.
struct AdamBackend {
  decltype(&dofla::block_squares) block_squares;
  decltype(&dofla::norm_of_blocks) norm_of_blocks;
  // With the step counted already; the device itself sees whether the norm is finite.
  void (*step)(std::span<AdamParameter> parameters, const Tensor& norm, double max_norm);
};
namespace cpu {
extern const AdamBackend kAdam;
}
namespace cuda {
extern const AdamBackend kAdam;
}

}  // namespace dofla
