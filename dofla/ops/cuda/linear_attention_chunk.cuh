// A chunk of tokens of linear attention: what the forward and the two sweeps of the backward share.
// A block works on one head of one sequence and on at most kTile of its features. It passes over
// rows y_j, which come with vectors w_j, and keeps for every feature m
//   peak_m = max_j l_jm,   a_m = Σ_j exp(l_jm − peak_m) c_j,   b_m = Σ_j exp(l_jm − peak_m) w_j,
// l_jm being the log feature of row j. In the forward the rows are keys, w values and c is 1.
//
// A chunk ends before a block of rows of which one exceeds, in any feature, what the chunk's first
// row sees by more than e^kLargestStep: docs/kernels.md, "Chunks", says why nothing that matters
// then vanishes.
#pragma once

#include "dofla/ops/cuda/feature_parts.cuh"
#include "dofla/ops/cuda/linear_attention_products.cuh"

namespace dofla::cuda {

constexpr float kLargestStep = 60.0f;

template <int kTile>
struct ChunkShared {
  float offset[kTile];  // ½ (log α_m − log M)
  float seen[kTile];    // the largest log feature that the first row sees
  float top[kTile / 16][kTile];
  float peak[kTile], decay[kTile];
  float faded[kTile];  // a relative to the new peak
  float a[kTile];
  int cut[kTile / 16];
};

// Directions of queries or keys, from the row `first` on, times the scale of the inner product.
template <class Tiling>
__device__ void load_directions(const BlockFeatures& f, const float* rows, int first, int width,
                                float inner_scale, typename Tiling::Wide to) {
  constexpr int kPairs = Tiling::kWidth / 2;
  for (int i = threadIdx.x; i < Tiling::kTile * kPairs; i += Tiling::kThreads) {
    const int m = i / kPairs, d = i % kPairs * 2;
    const float* row = rows + static_cast<int64_t>(first + m) * width;
    const float one = m < f.count && d < width ? row[d] * inner_scale : 0.0f;
    const float other = m < f.count && d + 1 < width ? row[d + 1] * inner_scale : 0.0f;
    to.store(m, d, one, other);
  }
}

template <class Tiling>
__device__ void load_offsets(const BlockFeatures& f, const float* log_alpha,
                             ChunkShared<Tiling::kTile>& shared) {
  if (threadIdx.x < Tiling::kTile)
    shared.offset[threadIdx.x] =
        static_cast<int>(threadIdx.x) < f.count
            ? 0.5f * (log_alpha[f.own + threadIdx.x] - logf(static_cast<float>(f.head_count)))
            : 0.0f;
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

// Where a second tile of directions begins in shared memory, after everything else: those of
// queries, where they have their own.
template <class T>
__device__ __forceinline__ T* after_shared(unsigned char* memory, size_t bytes) {
  return reinterpret_cast<T*>(memory + (bytes + 15) / 16 * 16);
}
template <class Tiling, class T>
constexpr size_t untied_shared_bytes(size_t bytes) {
  return (bytes + 15) / 16 * 16 + Tiling::kWideElements * sizeof(T);
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

// How many of the `rows` rows belong to the chunk: the blocks before the first row that exceeds
// what the chunk's first row sees by too much.
template <class Tiling>
__device__ int cut_chunk(const typename Tiling::Logs& logs, int rows, int block,
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
  return cut / block * block;
}

// The largest log features of the chunk's first block of rows, which its first row sees.
template <class Tiling>
__device__ __forceinline__ void find_seen(const typename Tiling::Logs& logs, int block,
                                          ChunkShared<Tiling::kTile>& shared) {
  const int m = threadIdx.x, c = threadIdx.x % 4;
  if (block > 1) {
    find_tops<Tiling>(logs, block, shared);
    __syncthreads();
    if (m < Tiling::kTile) {
      float top = -INFINITY;
#pragma unroll
      for (int w = 0; w < Tiling::kWarps; ++w) top = fmaxf(top, shared.top[w][m]);
      shared.seen[m] = top;
    }
    __syncthreads();
  } else if (threadIdx.x < 4) {
#pragma unroll
    for (int n = 0; n < Tiling::kBlocks; ++n) {
      shared.seen[8 * n + 2 * c] = logs[n][0];
      shared.seen[8 * n + 2 * c + 1] = logs[n][1];
    }
  }
}

// Decides how many of `rows` rows, in whole blocks, belong to the chunk, and computes the new
// peaks. Thread m < kTile holds `log_max`, the running maximum of feature m.
template <class Tiling>
__device__ int settle_peaks(const typename Tiling::Logs& logs, int rows, int block, float& log_max,
                            ChunkShared<Tiling::kTile>& shared) {
  const int m = threadIdx.x;
  find_seen<Tiling>(logs, block, shared);
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
    rows = cut_chunk<Tiling>(logs, rows, block, shared);
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

}  // namespace dofla::cuda
