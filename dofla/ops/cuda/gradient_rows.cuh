// The products that the gradients of softmax attention are made of: a warp has 16 rows of its own
// and passes over tiles of others.
#pragma once

#include "dofla/ops/cuda/fragment.cuh"

namespace dofla::cuda {

template <int kBlocks, class T>
__device__ __forceinline__ void round_sums(const float (&sums)[kBlocks][4],
                                           RoundedSums<T, kBlocks>& rounded) {
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) {
    rounded.pair[n][0] = Pair<T>(sums[n][0], sums[n][1]);
    rounded.pair[n][1] = Pair<T>(sums[n][2], sums[n][3]);
  }
}

// sums [16, columns] = own rows · other rowsᵀ
template <int kWidth, int kBlocks, class T, int kStride>
__device__ __forceinline__ void dot_rows(Tile<T, kStride> own, int row, Tile<T, kStride> other,
                                         float (&sums)[kBlocks][4]) {
#pragma unroll
  for (int k = 0; k < kWidth / 16; ++k) {
    const auto left = load_left(own, row, 16 * k);
#pragma unroll
    for (int n = 0; n < kBlocks / 2; ++n)
      multiply_add(sums[2 * n], sums[2 * n + 1], left, load_right(other, 16 * n, 16 * k));
  }
}

// sums [16, D] += weights · other rows
template <int kWidth, int kBlocks, class T, int kStride>
__device__ __forceinline__ void add_rows(const RoundedSums<T, kBlocks>& weights,
                                         Tile<T, kStride> other, float (&sums)[kWidth / 8][4]) {
#pragma unroll
  for (int k = 0; k < kBlocks / 2; ++k) {
    const auto left = weights.left(k);
#pragma unroll
    for (int n = 0; n < kWidth / 16; ++n)
      multiply_add(sums[2 * n], sums[2 * n + 1], left,
                   load_right_transposed(other, 16 * n, 16 * k));
  }
}

template <class T, int kWidth>
__device__ __forceinline__ void write_rows(const float (&sums)[kWidth / 8][4], float factor,
                                           int first, int rows, int width, bool paired, T* out,
                                           int64_t step) {
  const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first + 8 * half + g;
    if (row >= rows) continue;
#pragma unroll
    for (int n = 0; n < kWidth / 8; ++n)
      store_two(out + row * step, 8 * n + 2 * c, width, paired, factor * sums[n][2 * half],
                factor * sums[n][2 * half + 1]);
  }
}

}  // namespace dofla::cuda
