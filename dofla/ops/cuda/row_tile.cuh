// Rows of a matrix in shared memory: loads and stores.
#pragma once

#include "dofla/ops/cuda/tile_mma.cuh"
#include "dofla/ops/cuda/vector.cuh"

namespace dofla::cuda {

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

// Rows in shared memory. A stride of 8 elements more than a multiple of 16 keeps the eight rows
// that a lane group reads in different banks.
template <class T, int kStride>
struct Tile {
  static_assert(kStride % 16 == 8);
  T* data;
  __device__ T* at(int row, int column) const { return data + row * kStride + column; }
};

// A matrix more precise than T: for bf16, `rest` holds the rounding errors of `top`.
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
    const float2 top_values = rounded.floats();
    store_pair(top.at(row, column), rounded);
    store_pair(rest.at(row, column), {first - top_values.x, second - top_values.y});
  }
};

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
