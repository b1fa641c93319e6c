// Vanished pairs that are not negligible, computed one by one from logarithms (docs/kernels.md,
// "Vanished products").
#pragma once

#include "dofla/ops/cuda/feature_loss_objective.cuh"
#include "dofla/ops/cuda/feature_loss_tiles.cuh"

namespace dofla::cuda::feature_pairs {

// A vanished pair: x is its q·k and later its weight Y, y is log₂ of its product.
template <class Tiles>
__device__ __forceinline__ float2& vanished_pair(const Tiles& at, int row, int key) {
  return at.task.work.pairs[(int64_t{blockIdx.x} * kTile + row) * kTile + key];
}

// log₂ Σ_m 2^(x_m + y_m), by a whole warp.
__device__ __forceinline__ float log_sum(const float* x, const float* y, int count) {
  const int lane = threadIdx.x % 32;
  float top = kMasked, sum = 0;
  for (int m = lane; m < count; m += 32) top = fmaxf(top, x[m] + y[m]);
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
  for (int m = lane; m < count; m += 32) sum += fast_exp2(x[m] + y[m] - top);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  return top + fast_log2(sum);
}

// Whether any product of this warp vanished. Masked products are negative.
template <class Tile>
__device__ __forceinline__ bool any_vanished(const Tile& product) {
  float least = 1;
#pragma unroll
  for (const auto& block : product)
#pragma unroll
    for (const float s : block) least = fminf(least, fabsf(s));
  return __any_sync(0xffffffffu, least < kSmallestProduct);
}

// Resolves the pairs of this warp whose product vanished and for which needed(r, q·k, bound) says
// so: r is the lane's row g + 8 r, and log₂ S + the key's peak is below `bound`. Returns a bit
// for each of this lane's; with `record` they also enter the masks of the block.
template <class Tiles, class Needed>
__device__ __forceinline__ uint32_t resolve_vanished(const Tiles& at,
                                                     const typename Tiles::Tile& teacher,
                                                     const typename Tiles::Tile& product, int stage,
                                                     bool record, const Needed& needed) {
  uint32_t mine = 0;
#pragma unroll
  for (int n = 0; n < Tiles::kBlocks; ++n) {
    const float2 peaks = at.peaks_of(n, stage);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (!(fabsf(product[n][e]) < kSmallestProduct)) continue;
      const float bound = kLogSmallestProduct + (e % 2 == 0 ? peaks.x : peaks.y);
      if (!needed(e / 2, teacher[n][e], bound)) continue;
      mine |= 1u << (4 * n + e);
      vanished_pair(at, at.row_of(e), at.key_of(4 * n + e)).x = teacher[n][e];
    }
  }
#pragma unroll 1
  for (int bit = 0; bit < 4 * Tiles::kBlocks; ++bit) {
    uint32_t remaining = __ballot_sync(0xffffffffu, mine >> bit & 1);
    while (remaining != 0) {
      const int source = __ffs(static_cast<int>(remaining)) - 1;
      remaining &= remaining - 1;
      const int row = __shfl_sync(0xffffffffu, at.row_of(bit), source);
      const int key = __shfl_sync(0xffffffffu, at.key_of(bit), source);
      const float log_product = log_sum(at.logs(0, at.row_tile * kTile + row),
                                        at.logs(1, at.key_tile * kTile + key), at.item.head.count) +
                                2 * kLift;
      if (at.lane != source) continue;
      vanished_pair(at, row, key).y = log_product;
      if (record) {
        atomicOr(&at.state.row_mask[row], 1ull << key);
        atomicOr(&at.state.column_mask[key], 1ull << row);
        at.state.vanished = 1;
      }
    }
  }
  return mine;
}

// Calls f(bit, pair) for the lane's resolved pairs.
template <class Tiles, class F>
__device__ __forceinline__ void for_each_vanished(const Tiles& at, uint32_t bits, const F& f) {
#pragma unroll 1
  for (; bits != 0; bits &= bits - 1) {
    const int bit = __ffs(static_cast<int>(bits)) - 1;
    f(bit, vanished_pair(at, at.row_of(bit), at.key_of(bit)));
  }
}

// Adds the gradients of log features from the block's resolved pairs, Y times the share of the
// feature: features 16 owned.. of 16 rows (side 0) or keys (side 1) from `first` on, in the order
// of GradientSums::add_to_z.
template <class Tiles>
__device__ __forceinline__ void add_vanished(const Tiles& at, int side, int first, int owned,
                                             float (&p)[8]) {
  const float* mine =
      at.logs(side, (side == 0 ? at.row_tile : at.key_tile) * kTile) + at.item.window_first;
  const float* theirs =
      at.logs(1 - side, (side == 0 ? at.key_tile : at.row_tile) * kTile) + at.item.window_first;
  const int padded = at.item.head.padded;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int m = 16 * owned + at.g + i / 2 % 2 * 8, row = first + 2 * at.c + i % 2 + i / 4 * 8;
    unsigned long long remaining = side == 0 ? at.state.row_mask[row] : at.state.column_mask[row];
#pragma unroll 1
    for (; remaining != 0; remaining &= remaining - 1) {
      const int other = __ffsll(static_cast<long long>(remaining)) - 1;
      const float2 pair = side == 0 ? vanished_pair(at, row, other) : vanished_pair(at, other, row);
      p[i] += pair.x * fast_exp2(mine[int64_t{row} * padded + m] +
                                 theirs[int64_t{other} * padded + m] + 2 * kLift - pair.y);
    }
  }
}

// Once every thread has used the masks.
template <class Tiles>
__device__ __forceinline__ void clear_vanished(const Tiles& at) {
  if (threadIdx.x < kTile) at.state.row_mask[threadIdx.x] = at.state.column_mask[threadIdx.x] = 0;
  if (threadIdx.x == 0) at.state.vanished = 0;
}

}  // namespace dofla::cuda::feature_pairs
