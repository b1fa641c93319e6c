#include "dofla/ops/cuda/embedding_kernels.h"
#include "dofla/ops/cuda/overlap.cuh"
#include "dofla/ops/cuda/vector.cuh"

namespace dofla::cuda {
namespace {

constexpr int kThreads = 128;

// A thread writes 16 bytes of a row, or one element where rows do not come in packs of them.
template <class T, bool kPacked>
__global__ void embed_rows(Embedding e, T* __restrict__ out) {
  constexpr int kSize = kPacked ? Pack<T>::kSize : 1;
  let_next_start();
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x, pieces = e.width / kSize;
  if (i >= e.count * pieces) return;
  const int64_t row = i / pieces, column = i % pieces * kSize;
  const T* token = static_cast<const T*>(e.tokens) + e.ids[row] * e.width + column;
  const T* position = static_cast<const T*>(e.positions);
  if (position != nullptr) {
    const int64_t first = e.first == nullptr ? 0 : e.first[row / e.length];
    position += (first + row % e.length) * e.width + column;
  }
  T* to = out + row * e.width + column;
  if constexpr (kPacked) {
    Pack<T> sum = load_pack(token);
    if (position != nullptr) {
      const Pack<T> term = load_pack(position);
#pragma unroll
      for (int j = 0; j < kSize; ++j) sum.values[j] += term.values[j];
    }
    store_pack(sum, to);
  } else {
    *to = position == nullptr ? *token : from_float<T>(to_float(*token) + to_float(*position));
  }
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

cudaError_t launch_embed(const Embedding& e, void* out, cudaStream_t stream) {
  return with_type(e.element, [&](auto zero) {
    using T = decltype(zero);
    const bool packed =
        e.width % Pack<T>::kSize == 0 && aligned_to_packs(e.tokens, e.positions, out);
    const int64_t threads = e.count * e.width / (packed ? Pack<T>::kSize : 1);
    const auto run = packed ? embed_rows<T, true> : embed_rows<T, false>;
    if (threads > 0)
      run<<<blocks_for(threads, kThreads), kThreads, 0, stream>>>(e, static_cast<T*>(out));
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
