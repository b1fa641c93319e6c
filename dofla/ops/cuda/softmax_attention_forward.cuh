// What the kernels of the softmax attention's forward share: the blocks' order, and the rows of 16
// queries that a warp keeps, laid out as mma_bf16 has them.
#pragma once

#include <cmath>

#include "dofla/ops/cuda/fragment.cuh"
#include "dofla/ops/cuda/head_rows.cuh"
#include "dofla/ops/cuda/softmax_attention_kernels.h"

namespace dofla::cuda {

struct SoftmaxForwardArguments {
  HeadRows q, k, v;
  HeadRowsOut out;
  const int64_t* past;  // [B], keys before a sequence's first query; null: keys − queries
  float* log_sum;       // [B, H, T] or null
  int batch, heads, group, queries, keys, width, query_tiles;
  float log2_scale;  // log₂ e / √D
  bool packed, packed_out;
  int splits, tiles_per_split;
  float* parts;      // [B, H·splits, T, D] when splits > 1
  float* part_logs;  // [B, H·splits, T]
};

// The forward in bf16 by warpgroups, for rows in packs of 16 bytes.
cudaError_t launch_warpgroup_forward(const SoftmaxForwardArguments& a, cudaStream_t stream);
constexpr int kWarpgroupQueryTile = 128, kWarpgroupKeyTile = 64;

struct BlockPlace {
  int b, h, query_tile;
};

// Heads go in groups whose keys and values stay in the L2 cache; within a group late queries, which
// see more keys, go first, so that the multiprocessors finish together.
__device__ __forceinline__ BlockPlace place_of_block(const SoftmaxForwardArguments& a) {
  constexpr int kTogether = 32;
  const int first = blockIdx.x / (kTogether * a.query_tiles) * kTogether;
  const int together = min(kTogether, a.batch * a.heads - first);
  const int rest = static_cast<int>(blockIdx.x) - first * a.query_tiles;
  const int head = first + rest % together;
  return {head / a.heads, head % a.heads, a.query_tiles - 1 - rest / together};
}

// Rows after a sequence's last query may hold anything, and are never read.
__device__ __forceinline__ int past_of(const SoftmaxForwardArguments& a, int b) {
  return a.past == nullptr ? a.keys - a.queries : static_cast<int>(a.past[b]);
}

template <int kWidth>
struct RowSums {
  float values[kWidth / 8][4] = {};
  float largest[2] = {-INFINITY, -INFINITY};  // logit that the sums are relative to
  float total[2] = {};
};

// Keys that a row does not see become -∞. `limit` is the last column that the warp's first row
// sees.
template <int kBlocks>
__device__ __forceinline__ void mask_later(float (&logits)[kBlocks][4], int limit) {
  const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (8 * n + 2 * c + i % 2 > limit + g + i / 2 * 8) logits[n][i] = -INFINITY;
  }
}

// Sums are rescaled only when a logit exceeds their reference by this power of 2: between
// rescalings terms stay below it, far from overflow, and the result does not depend on the
// reference.
constexpr float kRescaleAt = 8.0f;

// Replaces logits by exp2(scale (logit − largest)) and adds them to the totals. True where
// `largest` moved: the values are then to be multiplied by `shrink`, as the totals were.
template <int kBlocks, int kWidth>
__device__ __forceinline__ bool exponentiate(float (&logits)[kBlocks][4], float scale,
                                             RowSums<kWidth>& sums, float (&shrink)[2]) {
  float top[2] = {-INFINITY, -INFINITY};
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      top[half] = fmaxf(top[half], fmaxf(logits[n][2 * half], logits[n][2 * half + 1]));
  }
  const bool exceeds = (top[0] - sums.largest[0]) * scale > kRescaleAt ||
                       (top[1] - sums.largest[1]) * scale > kRescaleAt;
  const bool moved = __any_sync(kWholeWarp, exceeds);
  if (moved) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float before = sums.largest[half], largest = fmaxf(before, quad_max(top[half]));
      // A row that has seen nothing has nothing to shrink.
      shrink[half] = largest == -INFINITY ? 1.0f : fast_exp2((before - largest) * scale);
      sums.largest[half] = largest;
      sums.total[half] *= shrink[half];
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float shift = sums.largest[half] == -INFINITY ? 0.0f : sums.largest[half] * scale;
    float even = 0, odd = 0;
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
      float &first = logits[n][2 * half], &second = logits[n][2 * half + 1];
      first = fast_exp2(fmaf(first, scale, -shift));
      second = fast_exp2(fmaf(second, scale, -shift));
      even += first;
      odd += second;
    }
    sums.total[half] += even + odd;
  }
  return moved;
}

template <int kBlocks>
__device__ __forceinline__ void shrink_rows(const float (&shrink)[2], float (&values)[kBlocks][4]) {
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) values[n][i] *= shrink[i / 2];
  }
}

// Divides the sums of a warp whose first row is query `first`, and writes what belongs to queries.
template <class Out, int kWidth>
__device__ __forceinline__ void write_rows(const RowSums<kWidth>& sums, int first, int queries,
                                           int width, bool paired, float scale, Out* out,
                                           int64_t step, float* log_sum) {
  constexpr float kLn2 = 0.6931471805599453f;
  const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float total = quad_sum(sums.total[half]);
    const int row = first + 8 * half + g;
    if (row >= queries) continue;
    const float inverse = total > 0.0f ? 1.0f / total : 0.0f;
#pragma unroll
    for (int n = 0; n < kWidth / 8; ++n)
      store_two(out + row * step, 8 * n + 2 * c, width, paired, sums.values[n][2 * half] * inverse,
                sums.values[n][2 * half + 1] * inverse);
    if (log_sum != nullptr && c == 0)
      log_sum[row] = total > 0.0f ? sums.largest[half] * scale * kLn2 + logf(total) : -INFINITY;
  }
}

// Rows [first, first + 16) of one head: to the result, or to the part of this split.
template <class T, int kWidth>
__device__ __forceinline__ void write_result(const SoftmaxForwardArguments& a, BlockPlace at,
                                             int split, int first, const RowSums<kWidth>& sums) {
  const int64_t head = int64_t{at.b} * a.heads + at.h;
  if (a.splits > 1) {
    const int64_t part = head * a.splits + split;
    write_rows(sums, first, a.queries, a.width, a.width % 2 == 0, a.log2_scale,
               a.parts + part * a.queries * a.width, a.width, a.part_logs + part * a.queries);
  } else {
    write_rows(sums, first, a.queries, a.width, a.packed_out, a.log2_scale,
               head_of<T>(a.out, at.b, at.h), a.out.token_step,
               a.log_sum == nullptr ? nullptr : a.log_sum + head * a.queries);
  }
}

}  // namespace dofla::cuda
