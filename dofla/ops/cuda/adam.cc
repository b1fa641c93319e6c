#include "dofla/ops/adam.h"

#include <numeric>

#include "dofla/ops/cuda/element_kernels.h"
#include "dofla/ops/cuda/tensors.h"

namespace dofla::cuda {
namespace {

void adam_step(const Tensor& gradient, const AdamOptions& options, AdamMoments& moments,
               Tensor& parameter) {
  const AdamFactors factors = adam_factors(options, moments.steps);
  if (moments.mean.dtype() == DType::kBF16)
    return cuda_check(
        launch_adam_in_bf16(factors, adam_chance(moments), parameter.count(), floats(gradient),
                            static_cast<uint16_t*>(moments.mean.mutable_raw()),
                            static_cast<uint16_t*>(moments.square.mutable_raw()),
                            mutable_floats(parameter), stream_of(parameter)),
        "adam");
  cuda_check(
      launch_adam(factors, parameter.count(), floats(gradient), mutable_floats(moments.mean),
                  mutable_floats(moments.square), mutable_floats(parameter), stream_of(parameter)),
      "adam");
}

// Every tensor leaves its sums in a row of a table, so that the GPU is waited for once.
double sum_of_squares(std::span<const Tensor> all) {
  const auto tensors = static_cast<int64_t>(all.size());
  Tensor table({tensors, kSquareSums}, DType::kF64, all.front().device());
  auto* row = static_cast<double*>(table.mutable_raw());
  for (const Tensor& x : all) {
    cuda_check(launch_sum_squares(x.count(), floats(x), row, stream_of(x)), "norm of gradients");
    row += kSquareSums;
  }
  const Tensor here = table.to(Device());
  const double* sums = here.data<double>();
  return std::accumulate(sums, sums + here.count(), 0.0);
}

void scale(float factor, Tensor& x) {
  cuda_check(launch_scale(factor, x.count(), mutable_floats(x), stream_of(x)), "scale");
}

}  // namespace

const AdamBackend kAdam = {
    .adam_step = adam_step, .sum_of_squares = sum_of_squares, .scale = scale};

}  // namespace dofla::cuda
