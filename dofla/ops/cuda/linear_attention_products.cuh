// The tile that a block of linear attention works on, and the products of its matrices: 64 tokens
// (or 32) by as many features, 16 rows a warp.
#pragma once

#include "dofla/ops/cuda/fragment.cuh"

namespace dofla::cuda {

template <class T, int kHeadWidth>
struct ChunkTiling {
  static constexpr int kWidth = kHeadWidth;
  static constexpr bool kFast = sizeof(T) == 2;
  // Tokens of a chunk, as linear_attention_chunk says, and features of a block.
  static constexpr int kTile = sizeof(T) == 4 && kWidth > 64 ? 32 : 64;
  static constexpr int kWarps = kTile / 16, kThreads = 32 * kWarps;
  static constexpr int kBlocks = kTile / 8;
  // One stride for all tiles, so that they can be reused for each other.
  static constexpr int kStride = (kWidth > kTile ? kWidth : kTile) + 8;
  static constexpr int kElements = kTile * kStride;
  static constexpr int kWideElements = kElements * WideTile<T, kStride>::kTiles;
  static constexpr int kStages = sizeof(T) == 2 ? 2 : 1;
  static constexpr int kColumns = kWidth < 64 ? kWidth : 64;  // of an output at a time
  using RowTile = Tile<T, kStride>;
  using Wide = WideTile<T, kStride>;
  using Logs = float[kBlocks][4];       // [16, kTile] of a warp
  using Values = float[kWidth / 8][4];  // [16, D] of a warp
  static constexpr int kColumnGroups = kColumns / 16;
  using Columns = float[kColumns / 8][4];
  using Factors = RoundedSums<T, kBlocks>;
};

// Calls body with a compile-time count where it is the usual kMost: the loop over it is then
// unrolled without branches, and loads and products of its iterations overlap. float32 has so many
// products an iteration that it gains nothing.
template <class Tiling, int kMost, class Body>
__device__ __forceinline__ void with_count(int count, const Body& body) {
  if (Tiling::kFast && count == kMost)
    body(kMost);
  else
    body(count);
}

// sums = x · featuresᵀ for the warp's rows of x and `groups` times 16 features.
template <class Tiling, class FeatureTile>
__device__ __forceinline__ void dot_features(typename Tiling::RowTile x,
                                             const FeatureTile& features, int groups,
                                             typename Tiling::Logs& sums) {
#pragma unroll
  for (int n = 0; n < Tiling::kBlocks; ++n) sums[n][0] = sums[n][1] = sums[n][2] = sums[n][3] = 0;
  with_count<Tiling, Tiling::kTile / 16>(groups, [&](int count) {
#pragma unroll
    for (int k = 0; k < Tiling::kWidth / 16; ++k) {
      const auto left = load_left(x, threadIdx.x / 32 * 16, 16 * k);
#pragma unroll
      for (int n = 0; n < Tiling::kTile / 16; ++n)
        if (n < count)
          multiply_add(sums[2 * n], sums[2 * n + 1], left, load_right(features, 16 * n, 16 * k));
    }
  });
}

// sums = left · rowsᵀ for all rows of the chunk: left(k) is a fragment of the warp's rows, k <
// steps.
template <class Tiling, int kMost, class Left>
__device__ __forceinline__ void dot_rows(const Left& left, int steps, typename Tiling::RowTile rows,
                                         typename Tiling::Logs& sums) {
#pragma unroll
  for (int n = 0; n < Tiling::kBlocks; ++n) sums[n][0] = sums[n][1] = sums[n][2] = sums[n][3] = 0;
  with_count<Tiling, kMost>(steps, [&](int count) {
#pragma unroll
    for (int k = 0; k < kMost; ++k) {
      if (k >= count) break;
      const auto fragment = left(k);
#pragma unroll
      for (int n = 0; n < Tiling::kTile / 16; ++n)
        multiply_add(sums[2 * n], sums[2 * n + 1], fragment, load_right(rows, 16 * n, 16 * k));
    }
  });
}

// Those of the row's block of rows and of earlier ones, rounded. A block has a power of 2 rows.
template <class Tiling>
__device__ __forceinline__ void keep_earlier(const typename Tiling::Logs& sums, int block,
                                             typename Tiling::Factors& kept) {
  const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4, row = threadIdx.x / 32 * 16 + g;
#pragma unroll
  for (int n = 0; n < Tiling::kBlocks; ++n) {
    const int j = 8 * n + 2 * c;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int last = (row + 8 * half) | (block - 1);
      kept.pair[n][half] = {j <= last ? sums[n][2 * half] : 0.0f,
                            j + 1 <= last ? sums[n][2 * half + 1] : 0.0f};
    }
  }
}

// sums [16, 16 kGroups] += left · rows, for `groups` times 16 columns from `column` on and 16 ·
// steps rows.
template <class Tiling, int kGroups>
__device__ __forceinline__ void add_product(const typename Tiling::Factors& left, int steps,
                                            typename Tiling::RowTile rows, int column, int groups,
                                            float (&sums)[2 * kGroups][4]) {
  constexpr int kSteps = Tiling::kTile / 16;
  const auto add = [&](int step_count, int group_count) {
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      if (k >= step_count) break;
      const auto fragment = left.left(k);
#pragma unroll
      for (int n = 0; n < kGroups; ++n)
        if (n < group_count)
          multiply_add(sums[2 * n], sums[2 * n + 1], fragment,
                       load_right_transposed(rows, column + 16 * n, 16 * k));
    }
  };
  with_count<Tiling, kSteps>(steps, [&](int step_count) {
    with_count<Tiling, kGroups>(groups, [&](int group_count) { add(step_count, group_count); });
  });
}

// A right operand whose columns are all ones.
struct Ones {
  __device__ Fragment<1> operator()(int) const {
    constexpr uint32_t kOnes = 0x3f803f80u;
    return {{{kOnes, kOnes, kOnes, kOnes}}};
  }
};

// A right operand whose columns are all c, which lies in shared memory.
template <class T>
struct Column {
  const float* c;
  __device__ Fragment<kWideParts<T>> operator()(int k16) const {
    Fragment<kWideParts<T>> b;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* at = c + 16 * k16 + threadIdx.x % 4 * 2 + i % 2 * 8;
      split(make_float2(at[0], at[1]), i, b);
    }
    return b;
  }
};

// For the warp's 16 features and the first `rows` rows: sums += Σ_j factor_j row_j, and column_sums
// += Σ_j factor_j c_j, whose entries 0 and 2 belong to features 16·warp + g and 16·warp + g + 8.
template <class Tiling, class C>
__device__ __forceinline__ void add_outer(typename Tiling::RowTile factors,
                                          typename Tiling::RowTile rows_tile, int rows, const C& c,
                                          typename Tiling::Values& sums, float (&column_sums)[4]) {
  const int feature = threadIdx.x / 32 * 16;
  with_count<Tiling, Tiling::kTile / 16>((rows + 15) / 16, [&](int count) {
#pragma unroll
    for (int k = 0; k < Tiling::kTile / 16; ++k) {
      if (k >= count) break;
      const auto left = load_left_transposed(factors, feature, 16 * k);
#pragma unroll
      for (int n = 0; n < Tiling::kWidth / 16; ++n)
        multiply_add(sums[2 * n], sums[2 * n + 1], left,
                     load_right_transposed(rows_tile, 16 * n, 16 * k));
      multiply_add(column_sums, left, c(k));
    }
  });
}

}  // namespace dofla::cuda
