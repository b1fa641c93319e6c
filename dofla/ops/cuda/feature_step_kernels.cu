#include <cmath>

#include "dofla/ops/cuda/adam.cuh"
#include "dofla/ops/cuda/block_total.cuh"
#include "dofla/ops/cuda/feature_step_kernels.h"
#include "dofla/ops/cuda/vector.cuh"

namespace dofla::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kSlices = 8;  // of a head's features

__device__ double squares(const float* x, int64_t begin, int64_t end) {
  double sum = 0;  // in double: a square overflows float at 2⁶⁴
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads)
    sum += static_cast<double>(x[i]) * x[i];
  return sum;
}

// One block a head.
__global__ void gradient_norms(FeatureStepArguments a) {
  const int64_t head = blockIdx.x, begin = a.offsets[head], end = a.offsets[head + 1];
  const double norm = sqrt(block_total<kThreads>(squares(a.grad_z, begin * a.width, end * a.width) +
                                                 squares(a.grad_log_alpha, begin, end)));
  if (threadIdx.x == 0) a.norms[head] = isfinite(norm) && isfinite(a.loss[head]) ? norm : nan("");
}

// kSlices blocks a head. If the gradient of any head is not finite, no block changes anything.
__global__ void step_heads(FeatureStepArguments a) {
  for (int64_t h = 0; h < a.heads; ++h)
    if (isnan(a.norms[h])) return;
  const int64_t head = blockIdx.x, begin = a.offsets[head], end = a.offsets[head + 1];
  const double norm = a.norms[head] > 0 ? a.norms[head] : 1;
  const auto unit = [&](float gradient) { return static_cast<float>(gradient / norm); };
  const int64_t first = blockIdx.y * kThreads + threadIdx.x, step = kSlices * kThreads;
  for (int64_t i = begin * a.width + first; i < end * a.width; i += step)
    adam_element(a.z_factors, unit(a.grad_z[i]), a.z_mean[i], a.z_square[i], a.z[i]);
  for (int64_t i = begin + first; i < end; i += step)
    adam_element(a.log_alpha_factors, unit(a.grad_log_alpha[i]), a.log_alpha_mean[i],
                 a.log_alpha_square[i], a.log_alpha[i]);
}

}  // namespace

cudaError_t launch_feature_step(const FeatureStepArguments& arguments, cudaStream_t stream) {
  const unsigned heads = static_cast<unsigned>(arguments.heads);
  gradient_norms<<<heads, kThreads, 0, stream>>>(arguments);
  step_heads<<<dim3(heads, kSlices), kThreads, 0, stream>>>(arguments);
  return cudaGetLastError();
}

}  // namespace dofla::cuda
