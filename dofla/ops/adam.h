// Adam with bias correction and, where weight_decay is not 0, decoupled decay (AdamW); the same
// arithmetic as PyTorch's optimizers of these names. Clipping by the norm of all gradients.
#pragma once

#include <span>
#include <vector>

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
// up or down by chance, so that they are right in the mean (docs/finetune.md, "Small moments"). The
// chance is that of the seed, the step and the number of an element: a parameter that is held in
// parts has the bits of a whole one.
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

void adam_step(const Tensor& gradient,  // shaped like the parameter, F32
               const AdamOptions& options, AdamMoments& moments, Tensor& parameter);

// The Euclidean norm of all gradients together, in double; not finite if any of them is not.
double global_norm(std::span<const Tensor> gradients);

// Its square in two steps, for gradients of which others hold some, on the CPU: sums of squares of
// every kSquaresBlock elements of a gradient, and those of all gradients added up. The same bits,
// whoever has made which sums.
constexpr int64_t kSquaresBlock = 4096;
std::vector<double> block_squares(const Tensor& gradient);
double total_squares(std::span<const std::vector<double>> blocks_of_gradients);

// Scales gradients of that norm so that it is at most max_norm. One that is not finite leaves them
// alone: skip the step then.
void clip_norm(double norm, double max_norm, std::span<Tensor> gradients);

// Clips by the global norm and returns it.
double clip_by_global_norm(double max_norm, std::span<Tensor> gradients);

// What a device has to implement; ops/adam.cc checks the arguments and picks the device.
struct AdamBackend {
  decltype(&dofla::adam_step) adam_step;                  // with the step counted already
  double (*sum_of_squares)(std::span<const Tensor> all);  // of the elements of all tensors together
  void (*scale)(float factor, Tensor& x);
};
namespace cpu {
extern const AdamBackend kAdam;
}
namespace cuda {
extern const AdamBackend kAdam;
}

}  // namespace dofla
