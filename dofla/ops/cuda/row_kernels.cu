#include "dofla/ops/cuda/row_kernels.h"
#include "dofla/ops/cuda/vector.cuh"

namespace dofla::cuda {
namespace {

constexpr int kThreads = 256, kRows = kThreads / 32;

// One warp a row.
template <class T>
__global__ void copy_some_rows(const T* __restrict__ from, int64_t width,
                               const int64_t* __restrict__ moves, int64_t count,
                               float* __restrict__ to) {
  const int64_t i = blockIdx.x * int64_t{kRows} + threadIdx.x / 32;
  if (i >= count) return;
  const T* source = from + moves[2 * i] * width;
  float* target = to + moves[2 * i + 1] * width;
  for (int64_t c = threadIdx.x % 32; c < width; c += 32) target[c] = to_float(source[c]);
}

}  // namespace

cudaError_t launch_copy_rows(Element element, const void* from, int64_t width, const int64_t* moves,
                             int64_t count, float* to, cudaStream_t stream) {
  return with_type(element, [&](auto zero) {
    using T = decltype(zero);
    copy_some_rows<<<blocks_for(count, kRows), kThreads, 0, stream>>>(static_cast<const T*>(from),
                                                                      width, moves, count, to);
  });
}

}  // namespace dofla::cuda
