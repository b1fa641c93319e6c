#include <cmath>

#include "dofla/ops/cuda/adam.cuh"
#include "dofla/ops/cuda/block_total.cuh"
#include "dofla/ops/cuda/feature_step_kernels.h"
#include "dofla/ops/cuda/vector.cuh"

namespace dofla::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kSlices = 8;  // of a head's features

struct Range {
  int64_t begin, end;
};
__device__ Range range_of(const FeatureStepArguments& a, const FeatureStepPart& part,
                          int64_t head) {
  if (part.grad == nullptr) return {0, 0};
  if (part.size == 0) return {head, head + 1};
  return {a.offsets[head] * part.size, a.offsets[head + 1] * part.size};
}

__device__ double squares(const float* x, Range range) {
  double sum = 0;  // in double: a square overflows float at 2⁶⁴
  for (int64_t i = range.begin + threadIdx.x; i < range.end; i += kThreads)
    sum += static_cast<double>(x[i]) * x[i];
  return sum;
}

// One block a head.
__global__ void gradient_norms(FeatureStepArguments a) {
  const int64_t head = blockIdx.x;
  double sum = 0;
  for (const FeatureStepPart& part : a.parts) sum += squares(part.grad, range_of(a, part, head));
  const double norm = sqrt(block_total<kThreads>(sum));
  bool finite = isfinite(norm);
  for (int64_t h = head * a.group; h < (head + 1) * a.group; ++h)
    finite = finite && isfinite(a.loss[h]);
  if (threadIdx.x == 0) a.norms[head] = finite ? norm : nan("");
}

// kSlices blocks a head. If the gradient of any head is not finite, no block changes anything.
__global__ void step_heads(FeatureStepArguments a) {
  for (int64_t h = 0; h < a.heads; ++h)
    if (isnan(a.norms[h])) return;
  const int64_t head = blockIdx.x;
  const double norm = a.norms[head] > 0 ? a.norms[head] : 1;
  for (const FeatureStepPart& part : a.parts) {
    const Range range = range_of(a, part, head);
    for (int64_t i = range.begin + blockIdx.y * kThreads + threadIdx.x; i < range.end;
         i += kSlices * kThreads)
      adam_element(part.factors, static_cast<float>(part.grad[i] / norm), part.mean[i],
                   part.square[i], part.value[i]);
  }
}

}  // namespace

cudaError_t launch_feature_step(const FeatureStepArguments& arguments, cudaStream_t stream) {
  const unsigned heads = static_cast<unsigned>(arguments.heads);
  gradient_norms<<<heads, kThreads, 0, stream>>>(arguments);
  step_heads<<<dim3(heads, kSlices), kThreads, 0, stream>>>(arguments);
  return cudaGetLastError();
}

}  // namespace dofla::cuda
