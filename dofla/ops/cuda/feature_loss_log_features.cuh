// Log features of tiles of queries or keys, on tensor cores: directions times x from bf16 parts.
#pragma once

#include "dofla/ops/cuda/feature_loss_plan.h"
#include "dofla/ops/cuda/swizzled_tile.cuh"

namespace dofla::cuda::feature_pairs {

constexpr int kFactorThreads = 128;

// A lane's features in a block of 16 are 4c .. 4c + 3 (c = lane % 4), adjacent in memory: the order
// in which rows of z are assigned to the columns of a product.
__device__ __forceinline__ uint32_t feature_lanes() {
  const int lane = threadIdx.x % 32, row = lane % 8 / 2 * 4 + lane / 16 * 2 + lane % 2;
  return swizzled(row, lane / 8 % 2);
}

// Log features of 16 tokens × 64 features: log[q][r][i] is feature 16 q + 4 c + i of row 8 r + g.
struct LogTile {
  float log[4][2][4];
};

// A block's work on one head of one sequence. In shared memory: two tiles of rows, of which one is
// loaded while the other is worked on, then one of z.
template <int kParts, int kWidth>
struct LogFeatures {
  static constexpr int kWidthTiles = kWidth / kTile;
  static constexpr uint32_t kPartBytes = kWidthTiles * kTileBytes;
  static constexpr uint32_t kRows = kParts * kPartBytes;
  static constexpr uint32_t kFeatureTiles = 2 * kRows;  // offset of z
  static constexpr uint32_t kSharedBytes = kFeatureTiles + kFeatureParts * kPartBytes;

  const Plan& plan;
  const Workspace& work;
  const Side& side;
  const HeadPlan head;
  const float balance_sign;  // how the balance goes into the logs: +1 for queries, −1 for keys
  const int b, h;
  const __nv_bfloat16* const x;
  const int64_t peak_row, row_base;  // first rows of peaks, of factors and logs
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

  __device__ LogFeatures(const Plan& p, const Workspace& w, int which, int query_head, int sequence,
                         float sign)
      : plan(p),
        work(w),
        side(w.side[which]),
        head(w.heads[query_head]),
        balance_sign(sign),
        b(sequence),
        h(query_head),
        x(side.x_of(sequence, h, p.heads)),
        peak_row((int64_t{b} * p.heads + h) * p.tokens),
        row_base((int64_t{b} * p.padded_total + head.padded_first) * p.tokens) {}

  __device__ int chunks(int tile) const { return min(8, 2 * plan.width16() - 8 * tile); }
  __device__ float* sums_of_tile(int tile) const {
    return work.key_sums + (int64_t{b} * plan.tiles + tile) * plan.padded_total + head.padded_first;
  }

  __device__ void fetch_features(int chunk) const {
    const int64_t part_step = int64_t{plan.padded_total} * kWidth;
    const int first = head.padded_first + chunk * kTile, rows = head.padded - chunk * kTile;
    for (int p = 0; p < kFeatureParts; ++p)
      for (int t = 0; t < kWidthTiles; ++t)
        copy_tile<kFactorThreads>(
            kFeatureTiles + p * kPartBytes + t * kTileBytes,
            side.directions + p * part_step + int64_t{first} * kWidth + t * kTile, kWidth, rows,
            chunks(t));
  }

  // Every step-th token from `token` on, into tile 0 or 1.
  __device__ void fetch_rows(int to, int token, int rows, int step) const {
    for (int p = 0; p < kParts; ++p)
      for (int t = 0; t < kWidthTiles; ++t)
        copy_tile<kFactorThreads>(to * kRows + p * kPartBytes + t * kTileBytes,
                                  x + p * side.part_step + token * side.x.token_step + t * kTile,
                                  step * side.x.token_step, rows, chunks(t));
  }

  __device__ float offset(int m) const {
    const float base = work.offsets[head.padded_first + m];
    return balance_sign == 0 ? base : base + balance_sign * work.balance[head.padded_first + m];
  }

  // Without the norm term, which all features of a row share.
  __device__ LogTile log_features(int rows_tile, int chunk) const {
    float sums[8][4] = {};
    multiply_rows<kParts, kFeatureParts, kWidthTiles>(
        sums, TileParts{rows_tile * kRows, kPartBytes}, 16 * warp,
        TileParts{kFeatureTiles, kPartBytes}, 0, feature_lanes(), plan.width16());
    const float scale = kLog2E / sqrtf(sqrtf(static_cast<float>(plan.width)));
    LogTile out;
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const int m = chunk * kTile + 16 * q + 4 * (lane % 4);
      if (m >= head.padded) continue;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float shift = offset(m + i);
#pragma unroll
        for (int r = 0; r < 2; ++r)
          out.log[q][r][i] = sums[2 * q + i / 2][2 * r + i % 2] * scale + shift;
      }
    }
    return out;
  }

  // What |x|² is multiplied by in log φ̃, to base 2; 0 for a map without it.
  __device__ float norm_scale() const {
    const float scale =
        plan.subtract_norm ? 0.5f * kLog2E / sqrtf(static_cast<float>(plan.width)) : 0.0f;
    return side.norm_weight == nullptr ? scale : scale * side.norm_weight[h / plan.sharing];
  }

  // scale · |x|² of rows g and g + 8 of this warp, from the tiles.
  __device__ void norm_terms(int rows_tile, float scale, float (&terms)[2]) const {
    const int row = 16 * warp + lane / 2;
    float sum = 0;
    for (int t = 0; t < kWidthTiles; ++t) {
      for (int chunk = lane % 2 * 4; chunk < min(lane % 2 * 4 + 4, chunks(t)); ++chunk) {
        float values[8] = {};
        for (int p = 0; p < kParts; ++p) {
          const uint4 words = *reinterpret_cast<const uint4*>(
              tile_at(rows_tile * kRows + p * kPartBytes + t * kTileBytes, row, chunk * 8));
          const uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float2 pair = unpack_bf16(pairs[i]);
            values[2 * i] += pair.x;
            values[2 * i + 1] += pair.y;
          }
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) sum += values[i] * values[i];
      }
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
#pragma unroll
    for (int r = 0; r < 2; ++r)
      terms[r] = scale * __shfl_sync(0xffffffffu, sum, 2 * (lane / 4) + 16 * r);
  }

  // Calls f(q, r, row, m) for the blocks of four logs, features m.., that this lane holds.
  template <class F>
  __device__ void for_each(int chunk, int rows, const F& f) const {
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const int m = chunk * kTile + 16 * q + 4 * (lane % 4);
      if (m >= head.padded) continue;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = 16 * warp + 8 * r + lane / 4;
        if (row < rows) f(q, r, row, m);
      }
    }
  }
};

}  // namespace dofla::cuda::feature_pairs
