// The tiles of the pair kernel: 64 queries × 64 keys of one head, with their factors, in shared
// memory, and the products over a warp's share of them.
#pragma once

#include "dofla/ops/cuda/feature_loss_plan.h"
#include "dofla/ops/cuda/swizzled_tile.cuh"

namespace dofla::cuda::feature_pairs {

// The lanes of a warp hold rows g and g + 8 (g = lane / 4) of 16, and columns 2c and 2c + 1
// (c = lane % 4) of every 8. kGroups times 4 warps: warp w has queries 16 (w % 4).. of the tile,
// its share w / 4 of the keys, and the sums of features 64 (w / 4).. of its queries. A warp goes
// through its keys in kRounds rounds of 32: more pairs at a time do not fit its registers.
template <int kInputParts, int kHeadWidth, int kGroupCount>
struct PairTiles {
  static constexpr int kParts = kInputParts, kWidth = kHeadWidth, kGroups = kGroupCount;
  static constexpr int kWarps = 4 * kGroups, kThreads = 32 * kWarps;
  static constexpr int kRounds = 2 / kGroups;
  static constexpr int kBlocks = 8 / kGroups / kRounds;  // of 8 keys
  static_assert(kBlocks % 4 == 0);
  // Shared memory: queries, query factors, weights, then for each stage keys and key factors.
  static constexpr int kWeightParts = weight_parts(kParts);
  static constexpr uint32_t kXPart = kWidth / kTile * kTileBytes, kX = kParts * kXPart;
  static constexpr uint32_t kFactorPart = kGroups * kTileBytes;
  static constexpr uint32_t kFactors = kFactorPlanes * kFactorPart;
  static constexpr uint32_t kWeights = kX + kFactors;
  static constexpr uint32_t kFirstStage = kWeights + kWeightParts * kTileBytes;
  static constexpr uint32_t kStage = kX + kFactors;

  using Tile = float[kBlocks][4];  // 16 queries × 8 kBlocks keys

  const PairTask& task;
  PairState& state;
  const Plan& plan;
  const Item& item;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int g = lane / 4, c = lane % 4, group = warp / 4, row16 = warp % 4 * 16;
  int row_tile, key_tile, first_key;

  __device__ PairTiles(const PairTask& pair_task, PairState& shared_state)
      : task(pair_task), state(shared_state), plan(pair_task.plan), item(shared_state.item) {}

  __device__ __forceinline__ uint32_t stage_at(int stage) const {
    return kFirstStage + static_cast<uint32_t>(stage) * kStage;
  }
  __device__ __forceinline__ const float* logs(int side, int token) const {
    return task.work.side[side].logs + item.feature_row + int64_t{token} * item.head.padded;
  }
  // Row and key of a lane's pair number `bit`, of 4 kBlocks.
  __device__ __forceinline__ int row_of(int bit) const { return row16 + g + bit / 2 % 2 * 8; }
  __device__ __forceinline__ int key_of(int bit) const {
    return first_key + bit / 4 * 8 + 2 * c + bit % 2;
  }
  // The peaks of keys 2c and 2c + 1 of block n.
  __device__ __forceinline__ float2 peaks_of(int n, int stage) const {
    return *reinterpret_cast<const float2*>(&state.key_peaks[stage][first_key + 8 * n + 2 * c]);
  }
  // An element of a [B, H, T] array at this lane's row g + 8 r; past the last token, the last's.
  __device__ __forceinline__ float row_value(const float* values, int r) const {
    const int query = min(row_tile * kTile + row16 + g + 8 * r, plan.tokens - 1);
    return values[(int64_t{item.b} * plan.heads + item.h) * plan.tokens + query];
  }

  // The rest of the row, as the teacher's logit and as log₂ S + the key's peak of a pair would be.
  __device__ __forceinline__ float rest_of(int r) const {
    return fmaxf(kNothing, kLog2E * row_value(task.work.rest, r));
  }
  __device__ __forceinline__ float rest_hat_of(int r) const {
    return rest_of(r) - row_value(task.work.side[0].peaks, r) + 2 * kLift;
  }
  __device__ __forceinline__ bool is_padding(int r) const {
    return task.work.rest != nullptr && row_value(task.work.rest, r) >= plan.padded_rest;
  }

  __device__ __forceinline__ void fetch_rows(int side, int tile, uint32_t to) const {
    const Side& from = task.work.side[side];
    const int token = tile * kTile, count = min(kTile, plan.tokens - token);
    const __nv_bfloat16* x = from.x_of(item.b, item.h, plan.heads) + token * from.x.token_step;
#pragma unroll
    for (int p = 0; p < kParts; ++p)
#pragma unroll
      for (int t = 0; t < kWidth / kTile; ++t)
        copy_tile<kThreads>(to + p * kXPart + t * kTileBytes, x + p * from.part_step + t * kTile,
                            from.x.token_step, count, min(8, 2 * plan.width16() - 8 * t));
  }

  __device__ __forceinline__ void fetch_factors(int side, int tile, int feature, int columns16,
                                                uint32_t to, uint32_t part_step) const {
    const int token = tile * kTile;
    const __nv_bfloat16* from = task.work.side[side].factors + item.feature_row +
                                int64_t{token} * item.head.padded + feature;
#pragma unroll
    for (int p = 0; p < kFactorPlanes; ++p)
      copy_tile<kThreads>(to + p * part_step, from + p * plan.plane_step(), item.head.padded,
                          min(kTile, plan.tokens - token), 2 * columns16);
  }
  __device__ __forceinline__ void fetch_factors(int side, int tile, uint32_t to) const {
#pragma unroll
    for (int i = 0; i < kGroups; ++i)
      fetch_factors(side, tile, item.window_first + i * kTile, min(4, item.blocks16 - 4 * i),
                    to + i * kTileBytes, kFactorPart);
  }

  __device__ __forceinline__ void fetch_queries() const {
    fetch_rows(0, row_tile, 0);
    fetch_factors(0, row_tile, kX);
  }
  __device__ __forceinline__ void fetch_keys(int tile, int stage, bool factors) const {
    fetch_rows(1, tile, stage_at(stage));
    if (!factors) return;
    fetch_factors(1, tile, stage_at(stage) + kX);
    const int token = tile * kTile + threadIdx.x;
    if (threadIdx.x < kTile) {
      const float* from =
          task.work.side[1].peaks + (int64_t{item.b} * plan.heads + item.h) * plan.tokens;
      const bool valid = token < plan.tokens;
      copy_4_bytes(&state.key_peaks[stage][threadIdx.x], from + (valid ? token : 0), valid);
    }
  }

  // q·k: the teacher's logits, but for the factor teacher_scale().
  __device__ __forceinline__ void multiply_teacher(Tile& teacher, int stage) const {
#pragma unroll
    for (int n = 0; n < kBlocks; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) teacher[n][e] = 0;
    multiply_rows<kParts, kParts, kWidth / kTile>(teacher, TileParts{0, kXPart}, row16,
                                                  TileParts{stage_at(stage), kXPart}, first_key,
                                                  sideways(), plan.width16());
  }
  __device__ __forceinline__ float teacher_scale() const {
    return kLog2E * rsqrtf(static_cast<float>(plan.width));
  }

  // The products S = Σ_m F_im G_jm.
  __device__ __forceinline__ void multiply_student(Tile& product, int stage) const {
#pragma unroll
    for (int n = 0; n < kBlocks; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) product[n][e] = 0;
    const uint32_t factors = stage_at(stage) + kX;
    multiply_rows<kFactorPlanes, kFactorPlanes, 1>(product, TileParts{kX, kFactorPart}, row16,
                                                   TileParts{factors, kFactorPart}, first_key,
                                                   sideways(), min(4, item.blocks16));
    if (kGroups == 2 && item.blocks16 > 4)
      multiply_rows<kFactorPlanes, kFactorPlanes, 1>(
          product, TileParts{kX + kTileBytes, kFactorPart}, row16,
          TileParts{factors + kTileBytes, kFactorPart}, first_key, sideways(), item.blocks16 - 4);
    if (item.head.padded > item.head.window) add_foreign_products(product);
  }

  // Features of the head outside the item's window: they are part of K̂, while their gradients
  // belong to other items.
  __device__ __forceinline__ void add_foreign_products(Tile& product) const {
    const uint32_t foreign = stage_at(task.stages);
#pragma unroll 1
    for (int feature = 0; feature < item.head.padded; feature += kTile) {
      if (feature >= item.window_first && feature < item.window_first + item.head.window) continue;
      const int columns16 = min(4, (item.head.padded - feature) / 16);
      __syncthreads();
      fetch_factors(0, row_tile, feature, columns16, foreign, kTileBytes);
      fetch_factors(1, key_tile, feature, columns16, foreign + 2 * kTileBytes, kTileBytes);
      commit_copies();
      wait_for_copies<0>();
      __syncthreads();
      multiply_rows<kFactorPlanes, kFactorPlanes, 1>(
          product, TileParts{foreign, kTileBytes}, row16,
          TileParts{foreign + 2 * kTileBytes, kTileBytes}, first_key, sideways(), columns16);
    }
  }

  // The pairs of the tile, 32 keys at a time: body(round).
  template <class Body>
  __device__ __forceinline__ void for_each_round(int first, const Body& body) {
#pragma unroll 1
    for (int round = first; round < kRounds; ++round) {
      first_key = group * (kTile / kGroups) + (round + kRounds) % kRounds * 8 * kBlocks;
      body(round);
    }
  }

  __device__ __forceinline__ bool at_edge() const {
    return (plan.causal && key_tile == row_tile) || (key_tile + 1) * kTile > plan.tokens ||
           (row_tile + 1) * kTile > plan.tokens;
  }

  // Replaces pairs that the mask excludes by `with`.
  __device__ __forceinline__ void mask(Tile& tile, float with) const {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int query = row_tile * kTile + row_of(e);
      const int last = query >= plan.tokens ? -1
                       : plan.causal        ? query | (plan.block - 1)
                                            : plan.tokens - 1;
#pragma unroll
      for (int n = 0; n < kBlocks; ++n)
        if (key_tile * kTile + key_of(4 * n + e) > last) tile[n][e] = with;
    }
  }
};

}  // namespace dofla::cuda::feature_pairs
