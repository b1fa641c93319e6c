// The gradients that a segment gives: those of its queries, and its part in those of the keys that
// it sees. A warp has 16 keys and passes over the queries of the group; with P the probabilities
// and S the gradients of logits, as [keys, queries], dv += P·g and dk += S·q stay in its
// registers. S also goes to shared memory, where a warp finds it as Sᵀ: 16 queries of it give half
// of the columns of dq = Sᵀ·k. So P is computed once, and nothing but a key's parts is exchanged
// between blocks.
#pragma once

#include "dofla/ops/cuda/exact_gradient_block.cuh"
#include "dofla/ops/cuda/gradient_rows.cuh"

namespace dofla::cuda {

constexpr int kQueriesAtOnce = 32;  // that a warp takes

// P and S of a warp's keys and some queries, in the place of the products k·q and v·g. The queries
// begin with `query` of the segment; `log` and `e` are theirs.
template <int kTiles>
__device__ __forceinline__ void weigh(const QueriesThatSee (&seeing)[2], int query, float scale,
                                      const float* log, const float* e, float (&weight)[kTiles][4],
                                      float (&slope)[kTiles][4]) {
  constexpr float kLog2E = 1.4426950408889634f;
  const int c = threadIdx.x % 4;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    const int column = 8 * n + 2 * c;
    const float2 logs = *reinterpret_cast<const float2*>(log + column);
    const float2 es = *reinterpret_cast<const float2*>(e + column);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float lowered =
          fmaf(weight[n][i], scale * kLog2E, (i % 2 == 0 ? logs.x : logs.y) * -kLog2E);
      const bool seen = seeing[i / 2].contains(query + column + i % 2);
      weight[n][i] = seen ? fast_exp2(lowered) : 0.0f;
      slope[n][i] = weight[n][i] * (slope[n][i] - (i % 2 == 0 ? es.x : es.y));
    }
  }
}

// dk and dv of a warp's keys, which begin at position `first`, and their rows of S.
template <class T, int kWidth>
__device__ __forceinline__ void add_to_keys(const GradientBlock<T, kWidth>& block, int pass,
                                            int step, int first, const QueriesThatSee (&seeing)[2],
                                            float (&grad_k)[kWidth / 8][4],
                                            float (&grad_v)[kWidth / 8][4]) {
  using Rows = typename GradientBlock<T, kWidth>::Rows;
  constexpr int kTiles = kQueriesAtOnce / 8;
  const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4, row = block.warp() * kRowTile;
#pragma unroll 1
  for (int part = 0; part < block.kQueries; part += kQueriesAtOnce) {
    const int query = block.query_of_pass(pass) + part, queries = block.segment.queries;
    if (query >= queries ||
        first > block.segment.last_seen(min(query + kQueriesAtOnce, queries) - 1))
      continue;  // add_to_queries does not look at this part of S
    const Rows q = {block.stage(step, 0).at(part, 0)}, grads = {block.stage(step, 1).at(part, 0)};
    float weight[kTiles][4] = {}, slope[kTiles][4] = {};
    dot_rows<kWidth>(block.keys, row, q, weight);
    dot_rows<kWidth>(block.values, row, grads, slope);
    weigh(seeing, query, block.a.scale, block.number(step, 0) + part, block.number(step, 1) + part,
          weight, slope);
    RoundedSums<T, kTiles> rounded;
    round_sums(weight, rounded);
    add_rows<kWidth>(rounded, grads, grad_v);
    round_sums(slope, rounded);
    add_rows<kWidth>(rounded, q, grad_k);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      store_pair(block.slopes.at(row + g, part + 8 * n + 2 * c), rounded.pair[n][0]);
      store_pair(block.slopes.at(row + g + 8, part + 8 * n + 2 * c), rounded.pair[n][1]);
    }
  }
}

// Adds what the tiles of keys before found for some queries, whose first is row `at` of
// [B, H, T], or keeps the sums for the next tile; a number is always the same thread's. Whether
// this was the last one.
template <class T, int kWidth>
__device__ __forceinline__ bool add_tiles(const GradientBlock<T, kWidth>& block, int first,
                                          int64_t at, int rows, int column,
                                          float (&sums)[kWidth / 16][4]) {
  const bool last = first + block.kKeys >= block.segment.count();
  const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4, width = block.a.part_width;
#pragma unroll
  for (int n = 0; n < kWidth / 16; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = g + 8 * half, d = column + 8 * n + 2 * c;
      if (row >= rows || d >= width) continue;
      float2* to = reinterpret_cast<float2*>(block.a.sums_q + (at + row) * width + d);
      if (first > 0) {
        const float2 before = *to;
        sums[n][2 * half] += before.x, sums[n][2 * half + 1] += before.y;
      }
      if (!last) *to = make_float2(sums[n][2 * half], sums[n][2 * half + 1]);
    }
  }
  return last;
}

// dq of a warp's queries over the keys of a tile, which begins at position `first`. It leaves by
// way of the queries' own tile, which is free now.
template <class T, int kWidth>
__device__ __forceinline__ void add_to_queries(const GradientBlock<T, kWidth>& block, int pass,
                                               int step, int first) {
  constexpr int kRowTiles = block.kQueries / kRowTile;
  const int row = block.warp() % kRowTiles * kRowTile;
  const int column = block.warp() / kRowTiles * (kWidth / 2);
  const int query = block.query_of_pass(pass) + row, head = block.head_of_pass(pass);
  const int rows = min(block.segment.queries - query, kRowTile);
  if (rows <= 0) return;
  const int end = min(block.segment.last_seen(query + rows - 1) + 1 - first, block.kKeys);
  float sums[kWidth / 16][4] = {};
  for (int k = 0; k < end; k += 16) {
    const auto left = load_left_transposed(block.slopes, row, k);
#pragma unroll
    for (int n = 0; n < kWidth / 32; ++n)
      multiply_add(sums[2 * n], sums[2 * n + 1], left,
                   load_right_transposed(block.keys, column + 16 * n, k));
  }
  if (block.segment.count() > block.kKeys &&
      !add_tiles(block, first, block.row_of(head, query), rows, column, sums))
    return;
  const ExactBackwardArguments& a = block.a;
  const Tile<T, kWidth + 8> by = {block.stage(step, 0).at(row, column)};
  write_by<kWidth / 2>(by, sums, a.scale, rows, a.width - column, a.packed_q,
                       head_of<T>(a.grad_q, block.b, head) +
                           (block.segment.first + query) * a.grad_q.token_step + column,
                       a.grad_q.token_step);
}

// The part of a tile of keys, which begins at position `first`.
template <class T, int kWidth>
__device__ __forceinline__ void add_tile(const GradientBlock<T, kWidth>& block, int first,
                                         int64_t part, int& step) {
  const ExactBackwardArguments& a = block.a;
  const int own = first + block.warp() * kRowTile, g = threadIdx.x % 32 / 4;
  const int count = block.segment.count(), passes = a.group * block.tiles;
  const QueriesThatSee seeing[2] = {block.queries_that_see(own + g),
                                    block.queries_that_see(own + g + 8)};
  float grad_k[kWidth / 8][4] = {}, grad_v[kWidth / 8][4] = {};
  for (int pass = 0; pass < passes; ++pass, ++step) {
    wait_for_copies<0>();
    __syncthreads();
    if (pass + 1 < passes)
      block.load_queries(pass + 1, step + 1);
    else if (first + block.kKeys < count)
      block.load_queries(0, step + 1);  // for the next tile
    add_to_keys(block, pass, step, own, seeing, grad_k, grad_v);
    __syncthreads();
    add_to_queries(block, pass, step, first);
  }
  // By way of the warp's own values, which no other looks at.
  const Tile<T, kWidth + 8> by = {block.values.at(block.warp() * kRowTile, 0)};
  const int64_t at = (part + own) * a.part_width;
  write_by<kWidth>(by, grad_k, a.scale, count - own, a.part_width, true,
                   static_cast<T*>(a.part_k) + at, a.part_width);
  write_by<kWidth>(by, grad_v, 1.0f, count - own, a.part_width, true,
                   static_cast<T*>(a.part_v) + at, a.part_width);
}

// A block has a segment of a key head.
template <class T, int kWidth>
__global__ void __launch_bounds__(32 * GradientTiling<T, kWidth>::kWarps,
                                  GradientTiling<T, kWidth>::kBlocks)
    exact_segment_gradients(const __grid_constant__ ExactBackwardArguments a) {
  const GradientBlock<T, kWidth> block(a, reinterpret_cast<T*>(shared_memory()));
  if (block.segment.queries == 0) return;
  const int64_t part = a.part_row(block.b, block.key_head, blockIdx.x);
  block.load_queries(0, 0);
  find_positions(block.segment, 0, block.segment.count(), block.positions);
  __syncthreads();
  for (int first = 0, step = 0; first < block.segment.count(); first += block.kKeys) {
    if (first > 0) __syncthreads();  // all have read the keys before
    block.load_keys(first);
    if (first == 0 && block.warp() == 0) block.find_next(part);
    add_tile(block, first, part, step);
  }
}

}  // namespace dofla::cuda
