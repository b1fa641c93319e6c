#include "dofla/ops/cuda/embedding_kernels.h"
#include "dofla/ops/cuda/vector.cuh"

namespace dofla::cuda {
namespace {

constexpr int kThreads = 128;

template <class T>
__global__ void embed_rows(const T* __restrict__ table, int64_t width,
                           const int64_t* __restrict__ ids, T* __restrict__ out) {
  const T* from = table + ids[blockIdx.x] * width;
  T* to = out + blockIdx.x * width;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) to[i] = from[i];
}

// A block owns some columns of a row of the table and adds to them one after another: the same sum
// every time, without atomics.
template <class T>
__global__ void embed_rows_backward(const T* __restrict__ grad, int64_t width, EmbeddedRows rows,
                                    float* __restrict__ grad_table) {
  const int64_t column = blockIdx.y * int64_t{kThreads} + threadIdx.x;
  if (column >= width) return;
  float& to = grad_table[rows.ids[blockIdx.x] * width + column];
  float sum = to;
  const int64_t end = rows.starts[blockIdx.x + 1];
  for (int64_t i = rows.starts[blockIdx.x]; i < end; ++i)
    sum += to_float(grad[rows.order[i] * width + column]);
  to = sum;
}

}  // namespace

cudaError_t launch_embed(Element element, const void* table, int64_t width, const int64_t* ids,
                         int64_t count, void* out, cudaStream_t stream) {
  return with_type(element, [&](auto zero) {
    using T = decltype(zero);
    if (count > 0)
      embed_rows<<<static_cast<unsigned>(count), kThreads, 0, stream>>>(
          static_cast<const T*>(table), width, ids, static_cast<T*>(out));
  });
}

cudaError_t launch_embed_backward(Element element, const void* grad, int64_t width,
                                  const EmbeddedRows& rows, float* grad_table,
                                  cudaStream_t stream) {
  return with_type(element, [&](auto zero) {
    using T = decltype(zero);
    const dim3 blocks(static_cast<unsigned>(rows.count), blocks_for(width, kThreads));
    if (rows.count > 0)
      embed_rows_backward<<<blocks, kThreads, 0, stream>>>(static_cast<const T*>(grad), width, rows,
                                                           grad_table);
  });
}

}  // namespace dofla::cuda
