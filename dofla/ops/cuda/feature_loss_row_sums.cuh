// The first pass over the keys, for losses of normalised rows: the sums of K and K̂ over each row.
// For softmax, feature_loss_factors.cu has already computed most of the student's.
#pragma once

#include "dofla/ops/cuda/feature_loss_vanished.cuh"

namespace dofla::cuda::feature_pairs {

// Every function takes the tiles as an argument: as a member they would keep the sums out of
// registers.
template <PairLoss kLoss, class Tiles>
struct RowSums {
  using Tile = typename Tiles::Tile;
  static constexpr int kBlocks = Tiles::kBlocks;

  RowStatistics<kLoss> statistics[2];

  // Whether the first pass needs the student's products with a tile of keys.
  __device__ __forceinline__ bool student_counts(const Tiles& at, int tile) const {
    return kLoss == PairLoss::kAttentionMse || (at.plan.causal && tile == at.row_tile);
  }

  // Of the lanes that share a row, the one that counts what the row holds beside its pairs.
  __device__ __forceinline__ static bool is_first(const Tiles& at) {
    return at.c == 0 && at.group == 0;
  }

  __device__ __forceinline__ void start(const Tiles& at) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      statistics[r] = {};
      if (at.task.work.rest != nullptr) {
        const float rest = at.rest_of(r), once = is_first(at) && rest > kNothing ? 1.0f : 0.0f;
        statistics[r].top = rest;
        statistics[r].sum = once;
        if constexpr (kLoss == PairLoss::kAttentionMse) {
          statistics[r].top_hat = at.rest_hat_of(r);
          statistics[r].sum_hat = statistics[r].cross = statistics[r].square = once;
        }
      }
      if constexpr (kLoss == PairLoss::kSoftmax) {
        statistics[r].top_hat = at.row_value(at.task.work.earlier, r);
        statistics[r].sum_hat = is_first(at) ? 1.0f : 0.0f;
      }
    }
  }

  // What the rest itself adds to the loss of the lane's rows, once their terms are known.
  __device__ __forceinline__ void add_rest(const Tiles& at, const RowTerms (&rows)[2],
                                           PairSums& sums) const {
    if (at.task.work.rest == nullptr || !is_first(at)) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float rest = at.rest_of(r);
      const bool exists = at.row_tile * kTile + at.row_of(2 * r) < at.plan.tokens;
      if (exists && rest > kNothing && !at.is_padding(r))
        pair_weight<kLoss>(rest, 1.0f, 1.0f, at.rest_hat_of(r) + rows[r].student, rows[r], sums);
    }
  }

  // The first pass: adds a tile to the statistics of its rows.
  __device__ __forceinline__ void add_tile(Tiles& at, int stage) {
    at.for_each_round(0, [&](int) {
      Tile teacher;
      at.multiply_teacher(teacher, stage);
      if (at.at_edge()) at.mask(teacher, kMasked);
      const float scale = at.teacher_scale();
      float top[2] = {kMasked, kMasked};
#pragma unroll
      for (int n = 0; n < kBlocks; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) top[e / 2] = fmaxf(top[e / 2], teacher[n][e]);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        statistics[r].raise(fmaxf(statistics[r].top, scale * top[r]), statistics[r].top_hat);
#pragma unroll
        for (int n = 0; n < kBlocks; ++n)
#pragma unroll
          for (int e = 2 * r; e < 2 * r + 2; ++e) statistics[r].add_teacher(scale * teacher[n][e]);
      }
      if (student_counts(at, at.key_tile)) add_student(at, teacher, stage);
    });
  }

  // The student's part of the statistics, of logits log₂ S + the key's peak.
  __device__ __forceinline__ void add_student(const Tiles& at, const Tile& teacher, int stage) {
    Tile product;
    at.multiply_student(product, stage);
    if (at.at_edge()) at.mask(product, -1);
    uint32_t vanished = 0;
    if (any_vanished(product))
      vanished = resolve_vanished(
          at, teacher, product, stage, false,
          [&](int r, float, float bound) { return bound > statistics[r].top_hat + kNegligible; });
    const float scale = at.teacher_scale();
    float top_hat[2] = {statistics[0].top_hat, statistics[1].top_hat};
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
      const float2 peaks = at.peaks_of(n, stage);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float s = product[n][e];
        product[n][e] =
            s < kSmallestProduct ? kMasked : fast_log2(s) + (e % 2 == 0 ? peaks.x : peaks.y);
        top_hat[e / 2] = fmaxf(top_hat[e / 2], product[n][e]);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      statistics[r].raise(statistics[r].top, top_hat[r]);
#pragma unroll
      for (int n = 0; n < kBlocks; ++n)
#pragma unroll
        for (int e = 2 * r; e < 2 * r + 2; ++e)
          statistics[r].add_student(scale * teacher[n][e], product[n][e]);
    }
    for_each_vanished(at, vanished, [&](int bit, const float2& pair) {
      const float s = pair.y + at.state.key_peaks[stage][at.key_of(bit)];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (bit / 2 % 2 != r) continue;
        statistics[r].raise(statistics[r].top, fmaxf(statistics[r].top_hat, s));
        statistics[r].add_student(scale * pair.x, s);
      }
    });
  }

  // The statistics of whole rows.
  __device__ __forceinline__ void finish(const Tiles& at, RowTerms (&rows)[2]) {
    PairState& state = at.state;
#pragma unroll
    for (int r = 0; r < 2; ++r) statistics[r].merge_quad();
    if constexpr (Tiles::kGroups == 2) {
      using Statistics = RowStatistics<kLoss>;
#pragma unroll
      for (int r = 0; r < 2; ++r)
        if (at.c == 0)
          *reinterpret_cast<Statistics*>(state.row_statistics[at.group][at.row16 + at.g + 8 * r]) =
              statistics[r];
      __syncthreads();
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const auto of_group = [&](int i) {
          return *reinterpret_cast<const Statistics*>(
              state.row_statistics[i][at.row16 + at.g + 8 * r]);
        };
        statistics[r] = of_group(0);
        statistics[r].merge(of_group(1));
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) rows[r] = statistics[r].terms();
  }
};

}  // namespace dofla::cuda::feature_pairs
