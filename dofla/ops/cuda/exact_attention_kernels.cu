// A block takes up to four row tiles of a segment's queries, all of one key head's group, and
// passes over the segment's keys, which it finds through the list of those that stayed: nothing is
// gathered beforehand.
#include <algorithm>

#include "dofla/ops/cuda/exact_segments.cuh"
#include "dofla/ops/cuda/launch.cuh"
#include "dofla/ops/cuda/softmax_attention_forward.cuh"

namespace dofla::cuda {
namespace {

constexpr int kMostWarps = 4, kKeyTile = 32;

struct ExactForwardArguments {
  HeadRows q, k, v;
  HeadRowsOut out;
  float* log_sum;  // [B, H, T]
  Segments segments;
  int blocks;  // of a segment
  int key_heads, group, queries, width;
  float log2_scale;
  bool packed, packed_out;
};

// Logits of keys that have left when a row's query comes, of rows that begin with query `query`.
template <int kBlocks>
__device__ __forceinline__ void mask_left(float (&logits)[kBlocks][4], const Segment& segment,
                                          int query, const Positions& positions, int first) {
  const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
  const int time[2] = {segment.time_of(query + g), segment.time_of(query + g + 8)};
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int leaves = positions.leaves(first + 8 * n + 2 * c + j);
      if (leaves < time[0]) logits[n][j] = -INFINITY;
      if (leaves < time[1]) logits[n][2 + j] = -INFINITY;
    }
  }
}

// Keys and values of one tile for the rows of a warp, which begin with query `query`. `limit` is
// the last key that it sees, counted from the tile's first, which is at position `first`.
template <class T, int kWidth, int kStride>
__device__ __forceinline__ void attend_keys(Tile<T, kStride> queries, int row,
                                            Tile<T, kStride> keys, Tile<T, kStride> values,
                                            int limit, const Segment& segment, int query,
                                            const Positions& positions, int first, float scale,
                                            RowSums<kWidth>& sums) {
  constexpr int kBlocks = kKeyTile / 8;
  float logits[kBlocks][4] = {};
#pragma unroll
  for (int k = 0; k < kWidth / 16; ++k) {
    const auto left = load_left(queries, row, 16 * k);
#pragma unroll
    for (int n = 0; n < kBlocks / 2; ++n)
      multiply_add(logits[2 * n], logits[2 * n + 1], left, load_right(keys, 16 * n, 16 * k));
  }
  if (limit < kKeyTile - 1) mask_later(logits, limit);
  if (segment.time > 0) mask_left(logits, segment, query, positions, first);
  float shrink[2];
  if (exponentiate(logits, scale, sums, shrink)) shrink_rows(shrink, sums.values);
  RoundedSums<T, kBlocks> weights;
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) {
    weights.pair[n][0] = Pair<T>(logits[n][0], logits[n][1]);
    weights.pair[n][1] = Pair<T>(logits[n][2], logits[n][3]);
  }
#pragma unroll
  for (int k = 0; k < kBlocks / 2; ++k) {
#pragma unroll
    for (int n = 0; n < kWidth / 16; ++n)
      multiply_add(sums.values[2 * n], sums.values[2 * n + 1], weights.left(k),
                   load_right_transposed(values, 16 * n, 16 * k));
  }
}

template <class T, int kWidth>
__global__ void __launch_bounds__(32 * kMostWarps)
    exact_attention(const __grid_constant__ ExactForwardArguments a) {
  constexpr int kStride = kWidth + 8;
  using Rows = Tile<T, kStride>;
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32;
  const int b = blockIdx.y / a.key_heads, key_head = blockIdx.y % a.key_heads;
  const Segment segment = a.segments.at(b, key_head, blockIdx.x / a.blocks);
  if (segment.queries == 0) return;
  const int first_tile = blockIdx.x % a.blocks * warps;
  T* shared = reinterpret_cast<T*>(shared_memory());
  const Rows queries{shared};
  const auto stage = [&](int tile, int which) {
    return Rows{shared + (warps * kRowTile + (tile % 2 * 2 + which) * kKeyTile) * kStride};
  };
  const Positions positions{
      reinterpret_cast<int2*>(shared + (warps * kRowTile + 4 * kKeyTile) * kStride)};
  const T* keys = head_of<T>(a.k, b, key_head);
  const T* values = head_of<T>(a.v, b, key_head);
  int seen = 0;  // by the block's rows
  for (int w = 0; w < warps; ++w) {
    const QueryRow at = query_row(segment, a.group, first_tile, w * kRowTile);
    if (at.exists)
      seen = max(seen, segment.last_seen(min(at.query + kRowTile, segment.queries) - 1) + 1);
  }
  if (seen == 0) return;  // all of the block
  find_positions(segment, 0, seen, positions);
  __syncthreads();
  const auto load_keys = [&](int tile) {
    load_segment_keys<T, kWidth>(stage(tile, 0), kKeyTile, positions, tile * kKeyTile, seen, a.k,
                                 keys, a.width, a.packed);
    load_segment_keys<T, kWidth>(stage(tile, 1), kKeyTile, positions, tile * kKeyTile, seen, a.v,
                                 values, a.width, a.packed);
    commit_copies();
  };

  load_segment_queries<T, kWidth>(queries, warps * kRowTile, segment, a.group, first_tile, a.q, b,
                                  key_head, a.width, a.packed);
  load_keys(0);
  wait_for_copies<0>();
  __syncthreads();
  const QueryRow mine = query_row(segment, a.group, first_tile, warp * kRowTile);
  RowSums<kWidth> sums;
  const int tiles = (seen + kKeyTile - 1) / kKeyTile;
  for (int tile = 0; tile < tiles; ++tile) {
    if (tile + 1 < tiles) load_keys(tile + 1);
    const int limit = segment.last_seen(mine.query) - tile * kKeyTile;
    if (mine.exists && limit + kRowTile - 1 >= 0)
      attend_keys<T, kWidth>(queries, warp * kRowTile, stage(tile, 0), stage(tile, 1), limit,
                             segment, mine.query, positions, tile * kKeyTile, a.log2_scale, sums);
    wait_for_copies<0>();
    __syncthreads();
  }
  if (!mine.exists) return;
  const int head = key_head * a.group + mine.head;
  write_rows(sums, mine.query, segment.queries, a.width, a.packed_out, a.log2_scale,
             head_of<T>(a.out, b, head) + segment.first * a.out.token_step, a.out.token_step,
             a.log_sum + (int64_t{b} * a.key_heads * a.group + head) * a.queries + segment.first);
}

template <class T>
cudaError_t launch_segments(const ExactKeysShape& s, ExactForwardArguments a, cudaStream_t stream) {
  const int warps = std::min(kMostWarps, row_tiles(s));
  a.blocks = chunks(row_tiles(s), warps);
  return with_width(s.width, [&](auto width) {
    constexpr int kWidth = decltype(width)::value;
    const size_t rows = static_cast<size_t>(warps * kRowTile + 4 * kKeyTile);
    return launch(exact_attention<T, kWidth>, grid_of(s, a.blocks), 32 * warps,
                  rows * (kWidth + 8) * sizeof(T) + position_bytes(s), stream, a);
  });
}

}  // namespace

cudaError_t launch_exact_attention(const ExactKeysShape& s, const HeadRows& q, const HeadRows& k,
                                   const HeadRows& v, const KeptKeys& kept, const HeadRowsOut& out,
                                   float* log_sum, cudaStream_t stream) {
  if (!valid(s)) return cudaErrorInvalidValue;
  ExactForwardArguments a = {};
  a.q = q, a.k = k, a.v = v, a.out = out, a.log_sum = log_sum;
  a.segments = segments_of(s, kept);
  a.key_heads = static_cast<int>(s.key_heads), a.group = static_cast<int>(s.heads / s.key_heads);
  a.queries = static_cast<int>(s.queries), a.width = static_cast<int>(s.width);
  a.log2_scale = static_cast<float>(1.4426950408889634 / std::sqrt(static_cast<double>(s.width)));
  a.packed = in_packs(q, s.element, s.width) && in_packs(k, s.element, s.width) &&
             in_packs(v, s.element, s.width);
  a.packed_out = in_packs(out, s.element, s.width);
  return s.element == Element::kF32 ? launch_segments<float>(s, a, stream)
                                    : launch_segments<__nv_bfloat16>(s, a, stream);
}

}  // namespace dofla::cuda
