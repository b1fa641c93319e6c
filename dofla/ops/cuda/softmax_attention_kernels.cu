// Blocks of queries pass over tiles of keys and keep, for every row, the largest logit so far and
// sums relative to it.
#include <algorithm>
#include <cmath>

#include "dofla/ops/cuda/attention_parts.h"
#include "dofla/ops/cuda/fragment.cuh"
#include "dofla/ops/cuda/head_rows.cuh"
#include "dofla/ops/cuda/launch.cuh"
#include "dofla/ops/cuda/softmax_attention_kernels.h"

namespace dofla::cuda {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr float kLn2 = 0.6931471805599453f;
// Sums are rescaled only when a logit exceeds their reference by this power of 2: between
// rescalings terms stay below it, far from overflow, and the result does not depend on the
// reference.
constexpr float kRescaleAt = 8.0f;

template <class T, int kWidth>
struct Tiling {
  static constexpr bool kFast = sizeof(T) == 2;
  // Rows of a warp, in blocks of 16: two make each operand read from shared memory count twice.
  static constexpr int kRowBlocks = kFast && kWidth <= 64 ? 2 : 1;
  static constexpr int kQueryTile = 16 * kRowBlocks * kWarps;
  static constexpr int kKeyTile = !kFast && kWidth > 64 ? 32 : 64;
  static constexpr int kStride = kWidth + 8;
  static constexpr int kQueryElements = kQueryTile * kStride, kKeyElements = kKeyTile * kStride;
  // Queries, and two stages of keys and values.
  static constexpr size_t kSharedBytes = (kQueryElements + 4 * kKeyElements) * sizeof(T);
};

struct ForwardArguments {
  HeadRows q, k, v;
  HeadRowsOut out;
  float* log_sum;  // [B, H, T] or null
  int heads, group, queries, keys, width, query_tiles;
  float log2_scale;  // log₂ e / √D
  bool packed, packed_out;
  int splits, tiles_per_split;
  float* parts;      // [B, H·splits, T, D] when splits > 1
  float* part_logs;  // [B, H·splits, T]
};

// The sums of one warp.
template <class T, int kWidth>
struct Sums {
  using Tiles = Tiling<T, kWidth>;
  float values[Tiles::kRowBlocks][kWidth / 8][4] = {};
  float largest[Tiles::kRowBlocks][2];  // logit that the sums are relative to
  float total[Tiles::kRowBlocks][2] = {};
};

// Replaces logits by exp2(logit − largest), moving `largest` when it must.
template <class T, int kWidth, int kBlocks>
__device__ __forceinline__ void exponentiate(
    float (&logits)[Tiling<T, kWidth>::kRowBlocks][kBlocks][4], float scale,
    Sums<T, kWidth>& sums) {
  constexpr int kRowBlocks = Tiling<T, kWidth>::kRowBlocks;
  float top[kRowBlocks][2];
  bool rescale = false;
#pragma unroll
  for (int r = 0; r < kRowBlocks; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float most = -INFINITY;
#pragma unroll
      for (int n = 0; n < kBlocks; ++n)
        most = fmaxf(most, fmaxf(logits[r][n][2 * half], logits[r][n][2 * half + 1]));
      top[r][half] = quad_max(most);
      rescale |= (top[r][half] - sums.largest[r][half]) * scale > kRescaleAt;
    }
  }
  if (__any_sync(kWholeWarp, rescale)) {
#pragma unroll
    for (int r = 0; r < kRowBlocks; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float largest = fmaxf(sums.largest[r][half], top[r][half]);
        // A row that has seen nothing has nothing to rescale.
        const float shrink =
            largest == -INFINITY ? 1.0f : fast_exp2((sums.largest[r][half] - largest) * scale);
        sums.largest[r][half] = largest;
        sums.total[r][half] *= shrink;
#pragma unroll
        for (int n = 0; n < kWidth / 8; ++n) {
          sums.values[r][n][2 * half] *= shrink;
          sums.values[r][n][2 * half + 1] *= shrink;
        }
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRowBlocks; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float largest = sums.largest[r][half];
      const float shift = largest == -INFINITY ? 0.0f : largest * scale;
      float total = 0;
#pragma unroll
      for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          logits[r][n][i] = fast_exp2(fmaf(logits[r][n][i], scale, -shift));
          total += logits[r][n][i];
        }
      }
      sums.total[r][half] += total;
    }
  }
}

// One tile of keys and values for the rows of one warp. `limit` is the last key that the warp's
// first row sees, counted from the tile's first key.
template <class T, int kWidth, class LoadQuery>
__device__ __forceinline__ void attend_tile(const LoadQuery& load_query,
                                            Tile<T, Tiling<T, kWidth>::kStride> keys,
                                            Tile<T, Tiling<T, kWidth>::kStride> values, int limit,
                                            float scale, Sums<T, kWidth>& sums) {
  using Tiles = Tiling<T, kWidth>;
  constexpr int kRowBlocks = Tiles::kRowBlocks, kBlocks = Tiles::kKeyTile / 8;
  float logits[kRowBlocks][kBlocks][4] = {};
#pragma unroll
  for (int k = 0; k < kWidth / 16; ++k) {
    Fragment<kParts<T>> query[kRowBlocks];
#pragma unroll
    for (int r = 0; r < kRowBlocks; ++r) query[r] = load_query(r, k);
#pragma unroll
    for (int n = 0; n < kBlocks / 2; ++n) {
      const auto key = load_right(keys, 16 * n, 16 * k);
#pragma unroll
      for (int r = 0; r < kRowBlocks; ++r)
        multiply_add(logits[r][2 * n], logits[r][2 * n + 1], query[r], key);
    }
  }
  if (limit < Tiles::kKeyTile - 1) {
    const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < kRowBlocks; ++r) {
#pragma unroll
      for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (8 * n + 2 * c + i % 2 > limit + 16 * r + g + i / 2 * 8) logits[r][n][i] = -INFINITY;
      }
    }
  }
  exponentiate<T, kWidth, kBlocks>(logits, scale, sums);
  RoundedSums<T, kBlocks> weights[kRowBlocks];
#pragma unroll
  for (int r = 0; r < kRowBlocks; ++r) {
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
      weights[r].pair[n][0] = Pair<T>(logits[r][n][0], logits[r][n][1]);
      weights[r].pair[n][1] = Pair<T>(logits[r][n][2], logits[r][n][3]);
    }
  }
#pragma unroll
  for (int k = 0; k < kBlocks / 2; ++k) {
#pragma unroll
    for (int n = 0; n < kWidth / 16; ++n) {
      const auto value = load_right_transposed(values, 16 * n, 16 * k);
#pragma unroll
      for (int r = 0; r < kRowBlocks; ++r)
        multiply_add(sums.values[r][2 * n], sums.values[r][2 * n + 1], weights[r].left(k), value);
    }
  }
}

// Divides the sums of a warp whose first row is query `first`, and writes what belongs to queries.
template <class T, int kWidth, class Out>
__device__ __forceinline__ void write_rows(const Sums<T, kWidth>& sums, int first, int queries,
                                           int width, bool paired, float scale, Out* out,
                                           int64_t step, float* log_sum) {
  const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
#pragma unroll
  for (int r = 0; r < Tiling<T, kWidth>::kRowBlocks; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float total = quad_sum(sums.total[r][half]);
      const int row = first + 16 * r + 8 * half + g;
      if (row >= queries) continue;
      const float inverse = total > 0.0f ? 1.0f / total : 0.0f;
#pragma unroll
      for (int n = 0; n < kWidth / 8; ++n)
        store_two(out + row * step, 8 * n + 2 * c, width, paired,
                  sums.values[r][n][2 * half] * inverse, sums.values[r][n][2 * half + 1] * inverse);
      if (log_sum != nullptr && c == 0)
        log_sum[row] =
            total > 0.0f ? sums.largest[r][half] * scale * kLn2 + logf(total) : -INFINITY;
    }
  }
}

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads, sizeof(T) == 2 ? 2 : 1)
    softmax_attention(const __grid_constant__ ForwardArguments a) {
  using Tiles = Tiling<T, kWidth>;
  constexpr int kRowBlocks = Tiles::kRowBlocks, kKeyTile = Tiles::kKeyTile;
  T* shared = reinterpret_cast<T*>(shared_memory());
  const Tile<T, Tiles::kStride> query_tile{shared};
  const auto stage = [&](int tile, int which) {
    return Tile<T, Tiles::kStride>{shared + Tiles::kQueryElements +
                                   (tile % 2 * 2 + which) * Tiles::kKeyElements};
  };
  // Late queries see more keys: they go first, so that the multiprocessors finish together.
  const int tile_of_head = a.query_tiles - 1 - static_cast<int>(blockIdx.x) % a.query_tiles;
  const int index = blockIdx.x / a.query_tiles, b = index / a.heads, h = index % a.heads;
  const int first_query = tile_of_head * Tiles::kQueryTile, past = a.keys - a.queries;
  const int rows = min(Tiles::kQueryTile, a.queries - first_query);
  const int visible = past + first_query + rows, split = blockIdx.y;
  const int begin = split * a.tiles_per_split;
  const int end = min((visible + kKeyTile - 1) / kKeyTile, begin + a.tiles_per_split);

  const T* keys = head_of<T>(a.k, b, h / a.group);
  const T* values = head_of<T>(a.v, b, h / a.group);
  const auto load_keys = [&](int tile) {
    const int first = tile * kKeyTile;
    load_rows<kKeyTile, kWidth, kThreads>(stage(tile, 0), keys + first * a.k.token_step,
                                          a.k.token_step, a.keys - first, a.width, a.packed);
    load_rows<kKeyTile, kWidth, kThreads>(stage(tile, 1), values + first * a.v.token_step,
                                          a.v.token_step, a.keys - first, a.width, a.packed);
    commit_copies();
  };
  const int warp_row = threadIdx.x / 32 * 16 * kRowBlocks;  // in the tile
  Sums<T, kWidth> sums;
#pragma unroll
  for (int r = 0; r < kRowBlocks; ++r) sums.largest[r][0] = sums.largest[r][1] = -INFINITY;

  if (begin < end) {
    load_rows<Tiles::kQueryTile, kWidth, kThreads>(
        query_tile, head_of<T>(a.q, b, h) + first_query * a.q.token_step, a.q.token_step, rows,
        a.width, a.packed);
    load_keys(begin);
    wait_for_copies<0>();
    __syncthreads();
    // bf16 queries stay in registers; float32 would not fit.
    Fragment<1> held[Tiles::kFast ? kRowBlocks : 1][Tiles::kFast ? kWidth / 16 : 1];
    if constexpr (Tiles::kFast) {
#pragma unroll
      for (int r = 0; r < kRowBlocks; ++r) {
#pragma unroll
        for (int k = 0; k < kWidth / 16; ++k)
          held[r][k] = load_left(query_tile, warp_row + 16 * r, 16 * k);
      }
    }
    const auto load_query = [&](int r, int k) {
      if constexpr (Tiles::kFast)
        return held[r][k];
      else
        return load_left(query_tile, warp_row + 16 * r, 16 * k);
    };
    for (int tile = begin; tile < end; ++tile) {
      if (tile + 1 < end) load_keys(tile + 1);
      const int limit = past + first_query + warp_row - tile * kKeyTile;
      if (warp_row < rows && limit + 16 * kRowBlocks - 1 >= 0)
        attend_tile<T, kWidth>(load_query, stage(tile, 0), stage(tile, 1), limit, a.log2_scale,
                               sums);
      wait_for_copies<0>();
      __syncthreads();
    }
  }
  if (a.splits > 1) {
    const int64_t part = (int64_t{b} * a.heads + h) * a.splits + split;
    write_rows(sums, first_query + warp_row, a.queries, a.width, a.width % 2 == 0, a.log2_scale,
               a.parts + part * a.queries * a.width, a.width, a.part_logs + part * a.queries);
  } else {
    write_rows(sums, first_query + warp_row, a.queries, a.width, a.packed_out, a.log2_scale,
               head_of<T>(a.out, b, h), a.out.token_step,
               a.log_sum == nullptr ? nullptr : a.log_sum + (int64_t{b} * a.heads + h) * a.queries);
  }
}

// How many blocks share the keys of a query tile: enough in all to fill a large GPU twice.
int splits_of(const SoftmaxAttentionShape& s, int64_t query_tile, int64_t key_tile) {
  constexpr int64_t kEnoughBlocks = 264;
  const int64_t blocks = s.batch * s.heads * ((s.queries + query_tile - 1) / query_tile);
  const int64_t key_tiles = (s.keys + key_tile - 1) / key_tile;
  if (blocks == 0 || blocks >= kEnoughBlocks / 2 || s.heads > kMostHeads) return 1;
  const int64_t wanted = std::min(key_tiles, (kEnoughBlocks + blocks - 1) / blocks);
  const int64_t tiles_per_split = (key_tiles + wanted - 1) / wanted;
  return static_cast<int>((key_tiles + tiles_per_split - 1) / tiles_per_split);
}

template <class T, int kWidth>
int splits_of(const SoftmaxAttentionShape& s) {
  return splits_of(s, Tiling<T, kWidth>::kQueryTile, Tiling<T, kWidth>::kKeyTile);
}

bool valid(const SoftmaxAttentionShape& s) {
  return s.key_heads >= 1 && s.heads % s.key_heads == 0 && s.queries <= s.keys && s.width >= 1 &&
         s.width <= kWidestHead;
}

template <class T, int kWidth>
cudaError_t launch_forward(const SoftmaxAttentionShape& s, ForwardArguments a, void* workspace,
                           cudaStream_t stream) {
  using Tiles = Tiling<T, kWidth>;
  const int64_t key_tiles = (s.keys + Tiles::kKeyTile - 1) / Tiles::kKeyTile;
  a.query_tiles = static_cast<int>((s.queries + Tiles::kQueryTile - 1) / Tiles::kQueryTile);
  a.splits = splits_of<T, kWidth>(s);
  a.tiles_per_split = static_cast<int>((key_tiles + a.splits - 1) / a.splits);
  const int64_t parts = s.heads * a.splits;
  a.parts = static_cast<float*>(workspace);
  a.part_logs = a.parts + s.batch * parts * s.queries * s.width;
  const dim3 grid(static_cast<unsigned>(s.batch * s.heads * a.query_tiles),
                  static_cast<unsigned>(a.splits));
  const cudaError_t status =
      launch(softmax_attention<T, kWidth>, grid, kThreads, Tiles::kSharedBytes, stream, a);
  if (status != cudaSuccess || a.splits == 1) return status;
  PartTable table;
  for (int h = 0; h <= s.heads; ++h) table.first[h] = h * a.splits;
  return launch_merge_parts({s.element, s.batch, s.heads, parts, s.queries, s.width}, table,
                            a.parts, a.part_logs, a.out, a.log_sum, stream);
}

}  // namespace

int64_t softmax_attention_workspace_bytes(const SoftmaxAttentionShape& s) {
  int64_t bytes = 0;
  with_width(s.width, [&](auto width) {
    constexpr int kWidth = decltype(width)::value;
    const int splits = s.element == Element::kF32 ? splits_of<float, kWidth>(s)
                                                  : splits_of<__nv_bfloat16, kWidth>(s);
    if (splits > 1) bytes = s.batch * s.heads * splits * s.queries * (s.width + 1) * 4;
    return cudaSuccess;
  });
  return bytes;
}

cudaError_t launch_softmax_attention(const SoftmaxAttentionShape& s, const HeadRows& q,
                                     const HeadRows& k, const HeadRows& v, const HeadRowsOut& out,
                                     float* log_sum, void* workspace, cudaStream_t stream) {
  if (!valid(s)) return cudaErrorInvalidValue;
  ForwardArguments a = {};
  a.q = q, a.k = k, a.v = v, a.out = out;
  a.log_sum = log_sum;
  a.heads = static_cast<int>(s.heads), a.group = static_cast<int>(s.heads / s.key_heads);
  a.queries = static_cast<int>(s.queries), a.keys = static_cast<int>(s.keys);
  a.width = static_cast<int>(s.width);
  a.log2_scale = static_cast<float>(1.4426950408889634 / std::sqrt(static_cast<double>(s.width)));
  a.packed = in_packs(q, s.element, s.width) && in_packs(k, s.element, s.width) &&
             in_packs(v, s.element, s.width);
  a.packed_out = in_packs(out, s.element, s.width);
  return with_width(s.width, [&](auto width) {
    constexpr int kWidth = decltype(width)::value;
    return s.element == Element::kF32
               ? launch_forward<float, kWidth>(s, a, workspace, stream)
               : launch_forward<__nv_bfloat16, kWidth>(s, a, workspace, stream);
  });
}

}  // namespace dofla::cuda
