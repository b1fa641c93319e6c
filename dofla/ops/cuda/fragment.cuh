// Matrices in shared memory and registers as operands of tensor-core products. A bf16 element is
// one bf16 number; a float32 element is three that add up to it, and the products that matter in
// float32 are all taken, so that one kernel serves both types: fast for the one, exact for the
// other.
#pragma once

#include "dofla/ops/cuda/tile_mma.cuh"
#include "dofla/ops/cuda/vector.cuh"

namespace dofla::cuda {

template <class T>
constexpr int kParts = sizeof(T) == 2 ? 1 : 3;
// Parts of a value that is to be more exact than T: 16 bits of it beside bf16 operands.
template <class T>
constexpr int kWideParts = sizeof(T) == 2 ? 2 : 3;

template <int kLeftParts, int kRightParts>
constexpr int kMostParts = kLeftParts > kRightParts ? kLeftParts : kRightParts;

// A [16, 16] operand as the lanes of a warp hold it; as a right operand, two of [16, 8].
template <int kPartCount>
struct Fragment {
  uint32_t part[kPartCount][4];
};

// Two neighbouring elements, rounded to T.
template <class T>
struct Pair;

template <>
struct Pair<float> {
  float2 values;
  Pair() = default;
  __device__ Pair(float first, float second) : values(make_float2(first, second)) {}
  __device__ float2 floats() const { return values; }
};

template <>
struct Pair<__nv_bfloat16> {
  uint32_t packed;
  Pair() = default;
  __device__ Pair(float first, float second) : packed(pack_bf16(first, second)) {}
  __device__ float2 floats() const { return unpack_bf16(packed); }
};

template <class T>
__device__ __forceinline__ void store_pair(T* to, Pair<T> pair) {
  *reinterpret_cast<Pair<T>*>(to) = pair;
}

// Register `index` of a fragment: the leading bf16 number of each value, then what it left out.
template <int kPartCount>
__device__ __forceinline__ void split(float2 values, int index, Fragment<kPartCount>& fragment) {
#pragma unroll
  for (int p = 0; p < kPartCount; ++p) {
    fragment.part[p][index] = pack_bf16(values.x, values.y);
    const float2 taken = unpack_bf16(fragment.part[p][index]);
    values.x -= taken.x;
    values.y -= taken.y;
  }
}

// Rows in shared memory. A stride of 8 elements more than a multiple of 16 keeps the eight rows
// that a lane group reads in different banks.
template <class T, int kStride>
struct Tile {
  static_assert(kStride % 16 == 8);
  T* data;
  __device__ T* at(int row, int column) const { return data + row * kStride + column; }
};

// A matrix more exact than T: for bf16, what `top` leaves out is in `rest`.
template <class T, int kStride>
struct WideTile;

template <int kStride>
struct WideTile<float, kStride> {
  Tile<float, kStride> top;
  static constexpr int kTiles = 1;
  __device__ WideTile(float* data, int) : top{data} {}
  __device__ void store(int row, int column, float first, float second) const {
    store_pair(top.at(row, column), {first, second});
  }
};

template <int kStride>
struct WideTile<__nv_bfloat16, kStride> {
  Tile<__nv_bfloat16, kStride> top, rest;
  static constexpr int kTiles = 2;
  __device__ WideTile(__nv_bfloat16* data, int rows) : top{data}, rest{data + rows * kStride} {}
  __device__ void store(int row, int column, float first, float second) const {
    const Pair<__nv_bfloat16> rounded(first, second);
    const float2 taken = rounded.floats();
    store_pair(top.at(row, column), rounded);
    store_pair(rest.at(row, column), {first - taken.x, second - taken.y});
  }
};

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

// sums [16, 8] += a · b, of whose 16 columns the first 8 count, down to the smallest products that
// the more exact operand can tell.
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

// Brings `rows` rows of `width` elements, `step` apart, into a tile, in the background where they
// come in packs of 16 bytes. The rest of the [kRows, kWidth] becomes 0.
template <int kRows, int kWidth, int kThreads, class T, int kStride>
__device__ __forceinline__ void load_rows(Tile<T, kStride> to, const T* first, int64_t step,
                                          int rows, int width, bool packed) {
  constexpr int kPack = 16 / sizeof(T), kPacksPerRow = kWidth / kPack;
  if (packed) {
    constexpr int kPacks = kRows * kPacksPerRow;
#pragma unroll
    for (int start = 0; start < kPacks; start += kThreads) {
      const int i = start + threadIdx.x, row = i / kPacksPerRow, column = i % kPacksPerRow * kPack;
      if (kPacks % kThreads != 0 && i >= kPacks) break;
      const bool valid = row < rows && column < width;
      copy_16_bytes(to.at(row, column), valid ? first + row * step + column : first, valid);
    }
  } else {
    for (int i = threadIdx.x; i < kRows * kWidth; i += kThreads) {
      const int row = i / kWidth, column = i % kWidth;
      *to.at(row, column) =
          row < rows && column < width ? first[row * step + column] : from_float<T>(0.0f);
    }
  }
}

// Writes two neighbouring elements of a row of `width`; `paired` rows begin at an even address.
template <class T>
__device__ __forceinline__ void store_two(T* row, int column, int width, bool paired, float first,
                                          float second) {
  if (paired) {
    if (column < width) store_pair(row + column, Pair<T>(first, second));
  } else {
    if (column < width) row[column] = from_float<T>(first);
    if (column + 1 < width) row[column + 1] = from_float<T>(second);
  }
}

}  // namespace dofla::cuda
