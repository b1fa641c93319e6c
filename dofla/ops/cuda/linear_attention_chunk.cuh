// A chunk of tokens of linear attention: what the forward and the two sweeps of the backward share.
// A block works on one head of one sequence and on at most kTile of its features. It passes over
// rows y_j, which come with vectors w_j, and keeps for every feature m
//   peak_m = max_j l_jm,   a_m = Σ_j exp(l_jm − peak_m) c_j,   b_m = Σ_j exp(l_jm − peak_m) w_j,
// l_jm being the log feature of row j. In the forward the rows are keys, w values and c is 1.
//
// A chunk ends before a row that exceeds, in any feature, what the chunk's first row may see by
// more than e^60. Whatever a row may see is then at least e^-60 relative to the peaks that the
// chunk shares, while factors vanish below e^-87: what is lost is below e^-27 of any sum.
#pragma once

#include <algorithm>

#include "dofla/ops/cuda/attention_parts.h"
#include "dofla/ops/cuda/fragment.cuh"
#include "dofla/ops/cuda/head_rows.cuh"
#include "dofla/ops/cuda/linear_attention_kernels.h"

namespace dofla::cuda {

constexpr float kLargestStep = 60.0f;

__device__ __forceinline__ float fast_exp(float x) {
  return fast_exp2(x * 1.4426950408889634f);
}

template <class T, int kHeadWidth>
struct ChunkTiling {
  static constexpr int kWidth = kHeadWidth;
  static constexpr bool kFast = sizeof(T) == 2;
  // Tokens of a chunk and features of a block; shared memory decides.
  static constexpr int kTile = sizeof(T) == 4 && kWidth > 64 ? 32 : 64;
  static constexpr int kWarps = kTile / 16, kThreads = 32 * kWarps;
  static constexpr int kBlocks = kTile / 8;
  // One stride for all tiles, so that a row of one may take the place of a row of another.
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

// First feature of every head, then ΣM.
struct FeatureTable {
  int32_t first[kMostHeads + 1];
};

// The features of a block: `count` of head `head`, which has `head_count`.
struct BlockFeatures {
  int head, first, count, head_count;
  __device__ int groups() const { return (count + 15) / 16; }
};

__device__ __forceinline__ BlockFeatures features_of_block(const FeatureTable& table, int tile,
                                                           int part) {
  int head = 0;
  while (true) {
    const int first = table.first[head], count = table.first[head + 1] - first;
    const int parts = (count + tile - 1) / tile;
    if (part < parts) return {head, first + part * tile, min(tile, count - part * tile), count};
    part -= parts;
    ++head;
  }
}

template <int kTile>
struct ChunkShared {
  float offset[kTile];  // ½ (log α_m − log M)
  float seen[kTile];    // what the first row may see
  float top[kTile / 16][kTile];
  float peak[kTile], decay[kTile];
  float faded[kTile];  // a, relative to the new peak
  float a[kTile];
  int cut[kTile / 16];
};

// Directions, times the scale of the inner product.
template <class Tiling>
__device__ void load_directions(const BlockFeatures& f, const float* z, const float* log_alpha,
                                int width, float inner_scale, typename Tiling::Wide to,
                                ChunkShared<Tiling::kTile>& shared) {
  constexpr int kPairs = Tiling::kWidth / 2;
  for (int i = threadIdx.x; i < Tiling::kTile * kPairs; i += Tiling::kThreads) {
    const int m = i / kPairs, d = i % kPairs * 2;
    const float* row = z + static_cast<int64_t>(f.first + m) * width;
    const float first = m < f.count && d < width ? row[d] * inner_scale : 0.0f;
    const float second = m < f.count && d + 1 < width ? row[d + 1] * inner_scale : 0.0f;
    to.store(m, d, first, second);
  }
  if (threadIdx.x < Tiling::kTile)
    shared.offset[threadIdx.x] =
        static_cast<int>(threadIdx.x) < f.count
            ? 0.5f * (log_alpha[f.first + threadIdx.x] - logf(static_cast<float>(f.head_count)))
            : 0.0f;
}

// Calls body with a count that the compiler knows where it is the usual kMost: a loop over it then
// has no branches, and the loads and products of its turns overlap. float32 has so many products a
// turn that it gains nothing.
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

// Log features of the warp's rows of x, less a constant for each row. Where the block has no
// feature they are `missing`.
template <class Tiling>
__device__ __forceinline__ void log_features(typename Tiling::RowTile x,
                                             const typename Tiling::Wide& directions,
                                             const BlockFeatures& f, const float* offset,
                                             float2 less, float missing,
                                             typename Tiling::Logs& logs) {
  const int c = threadIdx.x % 4;
  dot_features<Tiling>(x, directions, f.groups(), logs);
#pragma unroll
  for (int n = 0; n < Tiling::kBlocks; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int m = 8 * n + 2 * c + i % 2;
      logs[n][i] = m < f.count ? logs[n][i] + offset[m] - (i < 2 ? less.x : less.y) : missing;
    }
  }
}

// scale · |x|² of a lane's two rows.
template <class Tiling, class T>
__device__ __forceinline__ float2 half_norms(Tile<T, Tiling::kStride> x, float scale) {
  const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4, row = threadIdx.x / 32 * 16 + g;
  float sums[2] = {};
#pragma unroll
  for (int d = 0; d < Tiling::kWidth; d += 8) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 pair =
          reinterpret_cast<const Pair<T>*>(x.at(row + 8 * half, d + 2 * c))->floats();
      sums[half] = fmaf(pair.x, pair.x, fmaf(pair.y, pair.y, sums[half]));
    }
  }
  return make_float2(scale * quad_sum(sums[0]), scale * quad_sum(sums[1]));
}

// The largest of the first `rows` rows, feature by feature, warp by warp.
template <class Tiling>
__device__ __forceinline__ void find_tops(const typename Tiling::Logs& logs, int rows,
                                          ChunkShared<Tiling::kTile>& shared) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = 16 * warp + lane / 4;
#pragma unroll
  for (int n = 0; n < Tiling::kBlocks; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float upper = row < rows ? logs[n][i] : -INFINITY;
      const float lower = row + 8 < rows ? logs[n][i + 2] : -INFINITY;
      const float top = column_max(fmaxf(upper, lower));
      if (lane < 4) shared.top[warp][8 * n + 2 * lane + i] = top;
    }
  }
}

// How many of the `rows` rows belong to the chunk; a row that stays out is the first to exceed what
// the chunk's first row may see.
template <class Tiling>
__device__ int cut_chunk(const typename Tiling::Logs& logs, int rows,
                         ChunkShared<Tiling::kTile>& shared) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = 16 * warp + lane / 4;
  int cut = rows;
#pragma unroll
  for (int n = 0; n < Tiling::kBlocks; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (logs[n][i] > shared.seen[8 * n + 2 * (lane % 4) + i % 2] + kLargestStep)
        cut = min(cut, row + i / 2 * 8);
  }
  cut = __reduce_min_sync(kWholeWarp, cut);
  if (lane == 0) shared.cut[warp] = cut;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < Tiling::kWarps; ++w) cut = min(cut, shared.cut[w]);
  return cut;
}

// Settles how many of `rows` rows the chunk takes, and the new peaks. Thread m < kTile keeps
// `log_max`, the peak so far of feature m.
template <class Tiling>
__device__ int settle_peaks(const typename Tiling::Logs& logs, int rows, float& log_max,
                            ChunkShared<Tiling::kTile>& shared) {
  const int m = threadIdx.x, c = threadIdx.x % 4;
  if (threadIdx.x < 4) {
#pragma unroll
    for (int n = 0; n < Tiling::kBlocks; ++n) {
      shared.seen[8 * n + 2 * c] = logs[n][0];
      shared.seen[8 * n + 2 * c + 1] = logs[n][1];
    }
  }
  const auto move_peak = [&] {
    float top = log_max;
#pragma unroll
    for (int w = 0; w < Tiling::kWarps; ++w) top = fmaxf(top, shared.top[w][m]);
    shared.peak[m] = top;
    shared.decay[m] = fast_exp(log_max - top);
    shared.faded[m] = shared.a[m] * shared.decay[m];
    return top;
  };
  find_tops<Tiling>(logs, rows, shared);
  __syncthreads();
  bool exceeds = false;
  if (m < Tiling::kTile) {
    shared.seen[m] = fmaxf(log_max, shared.seen[m]);
    exceeds = move_peak() > shared.seen[m] + kLargestStep;
  }
  if (__syncthreads_or(exceeds)) {
    rows = cut_chunk<Tiling>(logs, rows, shared);
    find_tops<Tiling>(logs, rows, shared);
    __syncthreads();
    if (m < Tiling::kTile) move_peak();
    __syncthreads();
  }
  if (m < Tiling::kTile) log_max = shared.peak[m];
  return rows;
}

// Factors exp(l − peak) of the warp's rows, 0 past `rows`, into a tile.
template <class Tiling>
__device__ __forceinline__ void store_factors(const typename Tiling::Logs& logs, int rows,
                                              const ChunkShared<Tiling::kTile>& shared,
                                              typename Tiling::RowTile to) {
  using Element = std::remove_pointer_t<decltype(to.data)>;
  const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4, row = threadIdx.x / 32 * 16 + g;
#pragma unroll
  for (int n = 0; n < Tiling::kBlocks; ++n) {
    const int m = 8 * n + 2 * c;
    const float2 peak = make_float2(shared.peak[m], shared.peak[m + 1]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool taken = row + 8 * half < rows;
      store_pair(to.at(row + 8 * half, m),
                 Pair<Element>(taken ? fast_exp(logs[n][2 * half] - peak.x) : 0.0f,
                               taken ? fast_exp(logs[n][2 * half + 1] - peak.y) : 0.0f));
    }
  }
}

// b of features 16·warp + g and 16·warp + g + 8, relative to the new peaks.
template <class Tiling>
__device__ __forceinline__ void fade(const ChunkShared<Tiling::kTile>& shared,
                                     typename Tiling::Values& b) {
  const int m = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
  const float upper = shared.decay[m], lower = shared.decay[m + 8];
#pragma unroll
  for (int n = 0; n < Tiling::kWidth / 8; ++n) {
    b[n][0] *= upper;
    b[n][1] *= upper;
    b[n][2] *= lower;
    b[n][3] *= lower;
  }
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

// What a row may see of them, rounded.
template <class Tiling>
__device__ __forceinline__ void keep_earlier(const typename Tiling::Logs& sums,
                                             typename Tiling::Factors& kept) {
  const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4, row = threadIdx.x / 32 * 16 + g;
#pragma unroll
  for (int n = 0; n < Tiling::kBlocks; ++n) {
    const int j = 8 * n + 2 * c;
#pragma unroll
    for (int half = 0; half < 2; ++half)
      kept.pair[n][half] = {j <= row + 8 * half ? sums[n][2 * half] : 0.0f,
                            j + 1 <= row + 8 * half ? sums[n][2 * half + 1] : 0.0f};
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

// FeatureTable and tile counts of a layer, or nothing where they do not suit the kernels.
struct FeatureParts {
  bool valid = false;
  int64_t total = 0;  // ΣM
  PartTable parts;    // of every head: blocks of at most `tile` features
  FeatureTable table;
  int64_t count = 0;  // of all parts
};

inline FeatureParts feature_parts(const LinearAttentionShape& s, const int64_t* counts) {
  FeatureParts f;
  if (s.heads < 1 || s.heads > kMostHeads || s.key_heads < 1 || s.heads % s.key_heads != 0 ||
      s.width < 1 || s.width > kWidestHead)
    return f;
  const int64_t tile = s.element == Element::kF32 && s.width > 64 ? 32 : 64;
  for (int64_t h = 0; h < s.heads; ++h) {
    if (counts[h] < 1) return f;
    f.table.first[h] = static_cast<int32_t>(f.total);
    f.parts.first[h] = static_cast<int32_t>(f.count);
    f.total += counts[h];
    f.count += (counts[h] + tile - 1) / tile;
  }
  f.table.first[s.heads] = static_cast<int32_t>(f.total);
  f.parts.first[s.heads] = static_cast<int32_t>(f.count);
  f.valid = true;
  return f;
}

}  // namespace dofla::cuda
