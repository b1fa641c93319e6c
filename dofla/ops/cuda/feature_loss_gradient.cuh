// From the weights Y of pairs to the gradients of features:
//   log feature m of query i: F_im Σ_j Y_ij G_jm       of key j: G_jm Σ_i Y_ij F_im
// and z_m gets their products with q_i and k_j. The queries' sums stay in
// registers until all keys of the tile have been seen; the keys' sums go to z_m tile by tile, so
// that blocks share nothing. Where features are untied, what came from keys leaves the registers
// before what comes from queries enters them, and the other way round.
#pragma once

#include "dofla/ops/cuda/feature_loss_partials.cuh"
#include "dofla/ops/cuda/feature_loss_vanished.cuh"

namespace dofla::cuda::feature_pairs {

// Every function takes the tiles as an argument: as a member they would keep the sums out of
// registers.
template <class Tiles, bool kUntied>
struct GradientSums {
  static constexpr int kWeightParts = Tiles::kWeightParts, kWidth = Tiles::kWidth;
  static constexpr int kGroups = Tiles::kGroups;
  static constexpr uint32_t kX = Tiles::kX, kWeights = Tiles::kWeights;
  static constexpr uint32_t kFactorPart = Tiles::kFactorPart;

  int owned, half_begin, half_end;  // the 16 features whose z this warp sums, over which keys
  float by_query[8][4];             // 16 queries × 64 features: Σ_j Y_ij G_jm
  float to_z[kWidth / 8][4];        // 16 features × kWidth
  float to_alpha[2];
  float to_norm[2];  // untied: of η, feature by feature
  float stale[2];  // untied: what partial gradients of queries and of keys are to be multiplied by

  __device__ __forceinline__ void start_item(const Tiles& at) {
    // With few blocks of 16 features two warps share one, each with half of the keys.
    int owners = 1;
    while (owners < at.item.blocks16) owners *= 2;
    const int share = at.warp / owners;
    const bool shared = Tiles::kWarps / owners >= 2;
    owned = at.warp % owners;
    half_begin = shared ? share : 0;
    half_end = shared ? share + 1 : 2;
    if (owned >= at.item.blocks16 || half_end > 2) half_begin = half_end = 2;
#pragma unroll
    for (int i = 0; i < kWidth / 8; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) to_z[i][e] = 0;
    to_alpha[0] = to_alpha[1] = 0;
    if constexpr (kUntied) {
      to_norm[0] = to_norm[1] = 0;
      stale[0] = stale[1] = 0;  // nothing is there yet
      // Of features that only one warp sums, the other's share stays 0.
      if (half_begin == 0 && half_end == 2) {
        for (int side = 0; side < 2; ++side) add_to_partials(at, owned, side, 1, 0.0f, to_z);
      }
    }
  }

  __device__ __forceinline__ void start_rows() {
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) by_query[i][e] = 0;
  }

  __device__ __forceinline__ void multiply_by(float factor) {
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) by_query[i][e] *= factor;
#pragma unroll
    for (int i = 0; i < kWidth / 8; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) to_z[i][e] *= factor;
    to_alpha[0] *= factor;
    to_alpha[1] *= factor;
    if constexpr (kUntied) {
#pragma unroll
      for (int i = 0; i < 2; ++i) to_norm[i] *= factor, stale[i] *= factor;
    }
  }

  // Where this lane's weights of row g and of the round's first keys go: those of block n lie at
  // this offset ^ 16 n, those of row g + 8 another 8 rows on.
  __device__ __forceinline__ uint32_t weights_at(const Tiles& at) const {
    return swizzled(at.row16 + at.g, at.first_key / 8) + 4 * at.c;
  }
  __device__ __forceinline__ void store_weights(uint32_t to, float first, float second) const {
    uint32_t parts[kWeightParts];
    split(first, second, parts);
#pragma unroll
    for (int p = 0; p < kWeightParts; ++p)
      *reinterpret_cast<uint32_t*>(shared_memory() + kWeights + p * kTileBytes + to) = parts[p];
  }

  // Adds the tile's weights in shared memory to the queries' sums and, through the keys, to z.
  __device__ __forceinline__ void add_tile(const Tiles& at, int stage) {
    const uint32_t keys = at.stage_at(stage);
    const int columns16 = at.item.blocks16 - 4 * at.group;
    if (columns16 >= 4)
      add_to_queries<true>(at, keys + kX, columns16);
    else
      add_to_queries<false>(at, keys + kX, columns16);
    const bool vanished = at.state.vanished != 0;
#pragma unroll 1
    for (int half = half_begin; half < half_end; ++half) add_keys_to_z(at, keys, half, vanished);
    if (!vanished) return;
    __syncthreads();
    clear_vanished(at);
  }

  // After the last key: the queries' sums go to z. They pass through the weights' shared memory.
  __device__ __forceinline__ void add_queries_to_z(const Tiles& at) {
    if constexpr (kUntied) flush(at, 1);
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      __syncthreads();
      if (at.group == i) {
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          if (n / 2 >= at.item.blocks16 - 4 * i) continue;
#pragma unroll
          for (int r = 0; r < 2; ++r) store_query_gradient(at, kX + i * kTileBytes, n, r);
        }
      }
      __syncthreads();
      if (owned / 4 != i) continue;
#pragma unroll 1
      for (int q16 = 2 * half_begin; q16 < 2 * half_end; ++q16) {
        float p[8];
        load_values<kWeightParts>(kWeights, kTileBytes, 16 * q16, p);
        add_to_z(at, p, 0, 16 * q16);
      }
    }
    if constexpr (kUntied) flush(at, 0);
  }

  __device__ __forceinline__ void write(const Tiles& at) {
    const PairTask& task = at.task;
    const int64_t first =
        at.plan.partial_row(task.first_item + at.state.number) + 16 * owned + at.g;
#pragma unroll
    for (int r = 0; r < 2; ++r) to_alpha[r] = quad_sum(to_alpha[r]);
    if constexpr (kUntied) {
      for (int r = 0; r < 2; ++r) to_norm[r] = quad_sum(to_norm[r]);
      // A scale that rose since the last rows' end; nothing is left in the registers.
      flush(at, 0);
      flush(at, 1);
    }
#pragma unroll 1
    for (int share = 0; share < 2; ++share) {
      if (share == half_begin) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          float* row = task.work.partial_z + (first + 8 * r) * kWidth + 2 * at.c;
#pragma unroll
          for (int n = 0; !kUntied && n < kWidth / 8; ++n) {
            float2 value = make_float2(to_z[n][2 * r], to_z[n][2 * r + 1]);
            float2* to = reinterpret_cast<float2*>(row + 8 * n);
            if (share == 1) value = make_float2(to->x + value.x, to->y + value.y);
            *to = value;
          }
          const auto write_to = [&](float* to, float value) {
            if (at.c == 0) to[first + 8 * r] = share == 1 ? to[first + 8 * r] + value : value;
          };
          write_to(task.work.partial_alpha, to_alpha[r]);
          if constexpr (kUntied) write_to(task.work.partial_norm, to_norm[r]);
        }
      }
      __syncthreads();
    }
  }

 private:
  // What the registers hold of z goes to the partial gradients of queries (side 0) or keys.
  __device__ __forceinline__ void flush(const Tiles& at, int side) {
    if (half_begin < 2) add_to_partials(at, owned, side, half_begin, stale[side], to_z);
    stale[side] = 1;
#pragma unroll
    for (int i = 0; i < kWidth / 8; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) to_z[i][e] = 0;
  }

  template <bool kAll>
  __device__ __forceinline__ void add_to_queries(const Tiles& at, uint32_t factors, int columns16) {
#pragma unroll
    for (int k16 = 0; k16 < 4; ++k16) {
      uint32_t left[kWeightParts][4];
#pragma unroll
      for (int p = 0; p < kWeightParts; ++p)
        load_matrices(left[p], block_at(kWeights + p * kTileBytes, upright(), at.row16, k16));
      multiply_columns<kAll, kWeightParts, kWeightParts>(
          by_query, left, TileParts{factors + at.group * kTileBytes, kFactorPart}, 16 * k16,
          columns16);
    }
  }

  // z_m += Σ_i p_mi x_i over 16 rows x_i. Of p, a lane holds features g and g + 8 in turn, two
  // neighbouring rows each, then the same 8 rows on.
  __device__ __forceinline__ void add_to_z(const Tiles& at, const float (&p)[8], uint32_t x,
                                           int row) {
    to_alpha[0] += (p[0] + p[1]) + (p[4] + p[5]);
    to_alpha[1] += (p[2] + p[3]) + (p[6] + p[7]);
    uint32_t left[kWeightParts][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t parts[kWeightParts];
      split(p[2 * i], p[2 * i + 1], parts);
#pragma unroll
      for (int part = 0; part < kWeightParts; ++part) left[part][i] = parts[part];
    }
    const TileParts rows = {x, Tiles::kXPart};
    if (at.plan.width16() == kWidth / 16)
      multiply_columns<true, kWeightParts, kWeightParts>(to_z, left, rows, row, kWidth / 16);
    else
      multiply_columns<false, kWeightParts, kWeightParts>(to_z, left, rows, row, at.plan.width16());
  }

  __device__ __forceinline__ uint32_t owned_tile(uint32_t factors) const {
    return factors + owned / 4 * kTileBytes;
  }

  // 32 keys, and for vanished pairs 32 queries.
  __device__ __forceinline__ void add_keys_to_z(const Tiles& at, uint32_t keys, int half,
                                                bool vanished) {
    float sums[4][4] = {};
#pragma unroll
    for (int i16 = 0; i16 < 4; ++i16) {
      uint32_t left[kWeightParts][4], right[kWeightParts][2][4];
#pragma unroll
      for (int p = 0; p < kWeightParts; ++p) {
        load_matrices_transposed(
            left[p], block_at(owned_tile(kX) + p * kFactorPart, sideways(), 16 * i16, owned % 4));
#pragma unroll
        for (int i = 0; i < 2; ++i)
          load_matrices_transposed(
              right[p][i], block_at(kWeights + p * kTileBytes, upright(), 16 * i16, 2 * half + i));
      }
      multiply_parts(sums, 0, left, right);
    }
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      const int first = 16 * (2 * half + s);
      float p[8];
      load_values<kFactorPlanes>(owned_tile(keys + kX), kFactorPart, first, p);
#pragma unroll
      for (int i = 0; i < 8; ++i) p[i] *= sums[2 * s + i / 4][i % 4];
      if (vanished) add_vanished(at, 1, first, owned, p);
      add_to_z(at, p, keys, first);
      if constexpr (kUntied) add_norms(at, first, p, to_norm);
    }
    if (!vanished) return;
    if constexpr (kUntied) flush(at, 1);
#pragma unroll 1
    for (int s = 0; s < 2; ++s) {
      const int first = 16 * (2 * half + s);
      float p[8] = {};
      add_vanished(at, 0, first, owned, p);
      add_to_z(at, p, 0, first);
    }
    if constexpr (kUntied) flush(at, 0);
  }

  // Rows first.. of the owned features, from bf16 parts and in the order of add_to_z.
  template <int kCount>
  __device__ __forceinline__ void load_values(uint32_t tile, uint32_t part_step, int first,
                                              float (&p)[8]) const {
#pragma unroll
    for (int part = 0; part < kCount; ++part) {
      uint32_t words[4];
      load_matrices_transposed(words,
                               block_at(tile + part * part_step, sideways(), first, owned % 4));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 value = unpack_bf16(words[i]);
        p[2 * i] = part == 0 ? value.x : p[2 * i] + value.x;
        p[2 * i + 1] = part == 0 ? value.y : p[2 * i + 1] + value.y;
      }
    }
  }

  __device__ __forceinline__ void store_query_gradient(const Tiles& at, uint32_t factors, int n,
                                                       int r) const {
    const int row = at.row16 + at.g + 8 * r, column = 8 * n + 2 * at.c;
    const auto factor = [&](int part) {
      return unpack_bf16(
          *reinterpret_cast<const uint32_t*>(tile_at(factors + part * kFactorPart, row, column)));
    };
    const float2 high = factor(0), low = factor(1);
    uint32_t parts[kWeightParts];
    split((high.x + low.x) * by_query[n][2 * r], (high.y + low.y) * by_query[n][2 * r + 1], parts);
#pragma unroll
    for (int p = 0; p < kWeightParts; ++p)
      *reinterpret_cast<uint32_t*>(tile_at(kWeights + p * kTileBytes, row, column)) = parts[p];
  }
};

}  // namespace dofla::cuda::feature_pairs
