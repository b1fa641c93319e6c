#include "dofla/ops/cuda/embedding_kernels.h"
#include "dofla/ops/cuda/vector.cuh"

namespace dofla::cuda {
namespace {

template <class T>
__global__ void embed_rows(const T* __restrict__ table, int64_t width,
                           const int64_t* __restrict__ ids, T* __restrict__ out) {
  const T* from = table + ids[blockIdx.x] * width;
  T* to = out + blockIdx.x * width;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) to[i] = from[i];
}

// A thread owns a column and takes the rows in order: the same sum every time, without atomics.
template <class T>
__global__ void embed_columns_backward(const T* __restrict__ grad, int64_t width,
                                       const int64_t* __restrict__ ids, int64_t count,
                                       float* __restrict__ grad_table) {
  const int64_t column = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (column >= width) return;
  for (int64_t i = 0; i < count; ++i)
    grad_table[ids[i] * width + column] += to_float(grad[i * width + column]);
}

}  // namespace

cudaError_t launch_embed(Element element, const void* table, int64_t width, const int64_t* ids,
                         int64_t count, void* out, cudaStream_t stream) {
  return with_type(element, [&](auto zero) {
    using T = decltype(zero);
    if (count > 0)
      embed_rows<<<static_cast<unsigned>(count), 128, 0, stream>>>(
          static_cast<const T*>(table), width, ids, static_cast<T*>(out));
  });
}

cudaError_t launch_embed_backward(Element element, const void* grad, int64_t width,
                                  const int64_t* ids, int64_t count, float* grad_table,
                                  cudaStream_t stream) {
  return with_type(element, [&](auto zero) {
    using T = decltype(zero);
    embed_columns_backward<<<blocks_for(width, 32), 32, 0, stream>>>(static_cast<const T*>(grad),
                                                                     width, ids, count, grad_table);
  });
}

}  // namespace dofla::cuda
