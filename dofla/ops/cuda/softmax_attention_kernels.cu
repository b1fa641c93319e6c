// Blocks of queries pass over tiles of keys and keep, for every row, the largest logit so far and
// sums relative to it.
#include <algorithm>

#include "dofla/ops/cuda/attention_parts.h"
#include "dofla/ops/cuda/launch.cuh"
#include "dofla/ops/cuda/softmax_attention_forward.cuh"

namespace dofla::cuda {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;

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
  using Sums = RowSums<kWidth>[kRowBlocks];
};

// One tile of keys and values for the rows of one warp. `limit` is the last key that the warp's
// first row sees, counted from the tile's first key.
template <class T, int kWidth, class LoadQuery>
__device__ __forceinline__ void attend_tile(const LoadQuery& load_query,
                                            Tile<T, Tiling<T, kWidth>::kStride> keys,
                                            Tile<T, Tiling<T, kWidth>::kStride> values, int limit,
                                            float scale, typename Tiling<T, kWidth>::Sums& sums) {
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
#pragma unroll
  for (int r = 0; r < kRowBlocks; ++r) {
    if (limit + 16 * r < Tiles::kKeyTile - 1) mask_later(logits[r], limit + 16 * r);
    float shrink[2];
    if (exponentiate(logits[r], scale, sums[r], shrink)) shrink_rows(shrink, sums[r].values);
  }
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
        multiply_add(sums[r].values[2 * n], sums[r].values[2 * n + 1], weights[r].left(k), value);
    }
  }
}

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads, sizeof(T) == 2 ? 2 : 1)
    softmax_attention(const __grid_constant__ SoftmaxForwardArguments a) {
  using Tiles = Tiling<T, kWidth>;
  constexpr int kRowBlocks = Tiles::kRowBlocks, kKeyTile = Tiles::kKeyTile;
  T* shared = reinterpret_cast<T*>(shared_memory());
  const Tile<T, Tiles::kStride> query_tile{shared};
  const auto stage = [&](int tile, int which) {
    return Tile<T, Tiles::kStride>{shared + Tiles::kQueryElements +
                                   (tile % 2 * 2 + which) * Tiles::kKeyElements};
  };
  const BlockPlace at = place_of_block(a);
  const int first_query = at.query_tile * Tiles::kQueryTile, past = past_of(a, at.b);
  const int rows = min(Tiles::kQueryTile, a.queries - first_query);
  const int visible = past + first_query + rows, split = blockIdx.y;
  const int begin = split * a.tiles_per_split;
  const int end = min((visible + kKeyTile - 1) / kKeyTile, begin + a.tiles_per_split);

  const T* keys = head_of<T>(a.k, at.b, at.h / a.group);
  const T* values = head_of<T>(a.v, at.b, at.h / a.group);
  const auto load_keys = [&](int tile) {
    const int first = tile * kKeyTile;
    load_rows<kKeyTile, kWidth, kThreads>(stage(tile, 0), keys + first * a.k.token_step,
                                          a.k.token_step, past + a.queries - first, a.width,
                                          a.packed);
    load_rows<kKeyTile, kWidth, kThreads>(stage(tile, 1), values + first * a.v.token_step,
                                          a.v.token_step, past + a.queries - first, a.width,
                                          a.packed);
    commit_copies();
  };
  const int warp_row = threadIdx.x / 32 * 16 * kRowBlocks;  // in the tile
  typename Tiles::Sums sums;

  if (begin < end) {
    load_rows<Tiles::kQueryTile, kWidth, kThreads>(
        query_tile, head_of<T>(a.q, at.b, at.h) + first_query * a.q.token_step, a.q.token_step,
        rows, a.width, a.packed);
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
#pragma unroll
  for (int r = 0; r < kRowBlocks; ++r)
    write_result<T>(a, at, split, first_query + warp_row + 16 * r, sums[r]);
}

// How many blocks share the keys of a query tile: enough in all to fill a large GPU twice. The
// tiles are those of the fastest kernels; those of others are smaller.
int splits_of(const SoftmaxAttentionShape& s) {
  constexpr int64_t kEnoughBlocks = 264, kQueryTile = 128, kKeyTile = 64;
  const int64_t blocks = s.batch * s.heads * ((s.queries + kQueryTile - 1) / kQueryTile);
  const int64_t key_tiles = (s.keys + kKeyTile - 1) / kKeyTile;
  if (blocks == 0 || blocks >= kEnoughBlocks / 2 || s.heads > kMostHeads) return 1;
  const int64_t wanted = std::min(key_tiles, (kEnoughBlocks + blocks - 1) / blocks);
  const int64_t tiles_per_split = (key_tiles + wanted - 1) / wanted;
  return static_cast<int>((key_tiles + tiles_per_split - 1) / tiles_per_split);
}

bool valid(const SoftmaxAttentionShape& s) {
  return s.key_heads >= 1 && s.heads % s.key_heads == 0 && s.queries <= s.keys && s.width >= 1 &&
         s.width <= kWidestHead;
}

// Warpgroups take 64 queries and 64 columns at a time: fewer leave most of their work idle.
bool suits_warpgroups(const SoftmaxAttentionShape& s, const SoftmaxForwardArguments& a) {
  return s.element == Element::kBF16 && a.packed && s.queries >= 64 && s.width > 32 &&
         warpgroups_available();
}

void set_tiles(int query_tile, int key_tile, SoftmaxForwardArguments& a) {
  a.query_tiles = (a.queries + query_tile - 1) / query_tile;
  a.tiles_per_split = ((a.keys + key_tile - 1) / key_tile + a.splits - 1) / a.splits;
}

template <class T>
cudaError_t launch_tiles(SoftmaxForwardArguments a, cudaStream_t stream) {
  return with_width(a.width, [&](auto width) {
    using Tiles = Tiling<T, decltype(width)::value>;
    set_tiles(Tiles::kQueryTile, Tiles::kKeyTile, a);
    const dim3 grid(static_cast<unsigned>(a.batch * a.heads * a.query_tiles),
                    static_cast<unsigned>(a.splits));
    return launch(softmax_attention<T, decltype(width)::value>, grid, kThreads, Tiles::kSharedBytes,
                  stream, a);
  });
}

cudaError_t launch_forward(const SoftmaxAttentionShape& s, SoftmaxForwardArguments a,
                           cudaStream_t stream) {
  if (suits_warpgroups(s, a)) {
    set_tiles(kWarpgroupQueryTile, kWarpgroupKeyTile, a);
    return launch_warpgroup_forward(a, stream);
  }
  return s.element == Element::kF32 ? launch_tiles<float>(a, stream)
                                    : launch_tiles<__nv_bfloat16>(a, stream);
}

}  // namespace

int64_t softmax_attention_workspace_bytes(const SoftmaxAttentionShape& s) {
  const int splits = splits_of(s);
  return splits > 1 ? s.batch * s.heads * splits * s.queries * (s.width + 1) * 4 : 0;
}

cudaError_t launch_softmax_attention(const SoftmaxAttentionShape& s, const HeadRows& q,
                                     const HeadRows& k, const HeadRows& v, const int64_t* past,
                                     const HeadRowsOut& out, float* log_sum, void* workspace,
                                     cudaStream_t stream) {
  if (!valid(s)) return cudaErrorInvalidValue;
  SoftmaxForwardArguments a = {};
  a.q = q, a.k = k, a.v = v, a.out = out;
  a.past = past;
  a.log_sum = log_sum;
  a.batch = static_cast<int>(s.batch);
  a.heads = static_cast<int>(s.heads), a.group = static_cast<int>(s.heads / s.key_heads);
  a.queries = static_cast<int>(s.queries), a.keys = static_cast<int>(s.keys);
  a.width = static_cast<int>(s.width);
  a.log2_scale = static_cast<float>(1.4426950408889634 / std::sqrt(static_cast<double>(s.width)));
  a.packed = in_packs(q, s.element, s.width) && in_packs(k, s.element, s.width) &&
             in_packs(v, s.element, s.width);
  a.packed_out = in_packs(out, s.element, s.width);
  a.splits = splits_of(s);
  const int64_t parts = s.heads * a.splits;
  a.parts = static_cast<float*>(workspace);
  a.part_logs = a.parts + s.batch * parts * s.queries * s.width;
  const cudaError_t status = launch_forward(s, a, stream);
  if (status != cudaSuccess || a.splits == 1) return status;
  PartTable table;
  for (int h = 0; h <= s.heads; ++h) table.first[h] = h * a.splits;
  return launch_merge_parts({s.element, s.batch, s.heads, parts, s.queries, s.width}, table,
                            a.parts, a.part_logs, a.out, a.log_sum, stream);
}

}  // namespace dofla::cuda
