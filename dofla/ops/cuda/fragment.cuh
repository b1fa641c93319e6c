// Tiles of shared memory and sums in registers as operands of tensor-core products. A bf16 element
// is one bf16 number; a float32 element is three that add up to it, and all products of parts that
// float32 can resolve are computed, so that one kernel template serves both types.
#pragma once

#include "dofla/ops/cuda/row_tile.cuh"

namespace dofla::cuda {

template <class T>
constexpr int kParts = sizeof(T) == 2 ? 1 : 3;
// Parts of a value that is more precise than T: 16 bits of it with bf16 operands.
template <class T>
constexpr int kWideParts = sizeof(T) == 2 ? 2 : 3;

template <int kLeftParts, int kRightParts>
constexpr int kMostParts = kLeftParts > kRightParts ? kLeftParts : kRightParts;

// A [16, 16] operand as the lanes of a warp hold it; as a right operand, two of [16, 8].
template <int kPartCount>
struct Fragment {
  uint32_t part[kPartCount][4];
};

// Register `index` of a fragment: the bf16 rounding of each value, then those of the remainders.
template <int kPartCount>
__device__ __forceinline__ void split(float2 values, int index, Fragment<kPartCount>& fragment) {
#pragma unroll
  for (int p = 0; p < kPartCount; ++p) {
    fragment.part[p][index] = pack_bf16(values.x, values.y);
    const float2 rounded = unpack_bf16(fragment.part[p][index]);
    values.x -= rounded.x;
    values.y -= rounded.y;
  }
}

// Left operand a(i, j) = tile(row + i, k + j).
template <int kStride>
__device__ __forceinline__ Fragment<1> load_left(Tile<__nv_bfloat16, kStride> tile, int row,
                                                 int k) {
  const int lane = threadIdx.x % 32;
  Fragment<1> a;
  load_matrices(a.part[0], tile.at(row + lane % 16, k + lane / 16 * 8));
  return a;
}

template <int kStride>
__device__ __forceinline__ Fragment<3> load_left(Tile<float, kStride> tile, int row, int k) {
  const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
  Fragment<3> a;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    split(*reinterpret_cast<const float2*>(tile.at(row + g + i % 2 * 8, k + 2 * c + i / 2 * 8)), i,
          a);
  return a;
}

// Left operand a(i, j) = tile(k + j, row + i).
template <int kStride>
__device__ __forceinline__ Fragment<1> load_left_transposed(Tile<__nv_bfloat16, kStride> tile,
                                                            int row, int k) {
  const int lane = threadIdx.x % 32;
  Fragment<1> a;
  load_matrices_transposed(a.part[0],
                           tile.at(k + lane % 8 + lane / 16 * 8, row + lane / 8 % 2 * 8));
  return a;
}

template <int kStride>
__device__ __forceinline__ Fragment<3> load_left_transposed(Tile<float, kStride> tile, int row,
                                                            int k) {
  const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
  Fragment<3> a;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float* at = tile.at(k + 2 * c + i / 2 * 8, row + g + i % 2 * 8);
    split(make_float2(at[0], at[kStride]), i, a);
  }
  return a;
}

// Right operand b(j, i) = tile(n + i, k + j), 16 columns.
template <int kStride>
__device__ __forceinline__ Fragment<1> load_right(Tile<__nv_bfloat16, kStride> tile, int n, int k) {
  const int lane = threadIdx.x % 32;
  Fragment<1> b;
  load_matrices(b.part[0], tile.at(n + lane % 8 + lane / 16 * 8, k + lane / 8 % 2 * 8));
  return b;
}

template <int kStride>
__device__ __forceinline__ Fragment<3> load_right(Tile<float, kStride> tile, int n, int k) {
  const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
  Fragment<3> b;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    split(*reinterpret_cast<const float2*>(tile.at(n + g + i / 2 * 8, k + 2 * c + i % 2 * 8)), i,
          b);
  return b;
}

// Right operand b(j, i) = tile(k + j, n + i), 16 columns.
template <int kStride>
__device__ __forceinline__ Fragment<1> load_right_transposed(Tile<__nv_bfloat16, kStride> tile,
                                                             int n, int k) {
  const int lane = threadIdx.x % 32;
  Fragment<1> b;
  load_matrices_transposed(b.part[0], tile.at(k + lane % 16, n + lane / 16 * 8));
  return b;
}

template <int kStride>
__device__ __forceinline__ Fragment<3> load_right_transposed(Tile<float, kStride> tile, int n,
                                                             int k) {
  const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
  Fragment<3> b;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float* at = tile.at(k + 2 * c + i % 2 * 8, n + g + i / 2 * 8);
    split(make_float2(at[0], at[kStride]), i, b);
  }
  return b;
}

template <int kStride>
__device__ __forceinline__ Fragment<3> load_right(WideTile<float, kStride> tile, int n, int k) {
  return load_right(tile.top, n, k);
}

template <int kStride>
__device__ __forceinline__ Fragment<2> load_right(WideTile<__nv_bfloat16, kStride> tile, int n,
                                                  int k) {
  const Fragment<1> top = load_right(tile.top, n, k), rest = load_right(tile.rest, n, k);
  Fragment<2> b;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    b.part[0][i] = top.part[0][i];
    b.part[1][i] = rest.part[0][i];
  }
  return b;
}

// Sums [16, 8 kBlocks] of mma_bf16, rounded to T: the left operand of another product.
template <class T, int kBlocks>
struct RoundedSums {
  Pair<T> pair[kBlocks][2];  // of a lane's row in the upper and in the lower half

  __device__ __forceinline__ Fragment<kParts<T>> left(int k16) const {
    Fragment<kParts<T>> a;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kParts<T> == 1)
        a.part[0][i] = pair[2 * k16 + i / 2][i % 2].packed;
      else
        split(pair[2 * k16 + i / 2][i % 2].floats(), i, a);
    }
    return a;
  }
};

// sums [16, 8] += a · b for the first 8 of b's 16 columns, without the products of parts that are
// below the rounding of the more precise operand.
template <int kLeftParts, int kRightParts>
__device__ __forceinline__ void multiply_add(float (&sums)[4], const Fragment<kLeftParts>& a,
                                             const Fragment<kRightParts>& b) {
#pragma unroll
  for (int i = kLeftParts - 1; i >= 0; --i) {
#pragma unroll
    for (int j = kRightParts - 1; j >= 0; --j)
      if (i + j < kMostParts<kLeftParts, kRightParts>)
        mma_bf16(sums, a.part[i], b.part[j][0], b.part[j][1]);
  }
}

// sums [16, 16] += a · b
template <int kLeftParts, int kRightParts>
__device__ __forceinline__ void multiply_add(float (&sums0)[4], float (&sums1)[4],
                                             const Fragment<kLeftParts>& a,
                                             const Fragment<kRightParts>& b) {
#pragma unroll
  for (int i = kLeftParts - 1; i >= 0; --i) {
#pragma unroll
    for (int j = kRightParts - 1; j >= 0; --j) {
      if (i + j >= kMostParts<kLeftParts, kRightParts>) continue;
      mma_bf16(sums0, a.part[i], b.part[j][0], b.part[j][1]);
      mma_bf16(sums1, a.part[i], b.part[j][2], b.part[j][3]);
    }
  }
}

}  // namespace dofla::cuda
