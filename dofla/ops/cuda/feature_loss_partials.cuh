// The partial gradients of untied features, of which an item has four planes: of queries and of
// keys, each by two warps that may share features.
#pragma once

#include "dofla/ops/cuda/feature_loss_tiles.cuh"

namespace dofla::cuda::feature_pairs {

// Adds a warp's sums for the 16 features that it owns to what is there, which counts `times` as
// much as it did; 0: nothing is there yet.
template <class Tiles>
__device__ __forceinline__ void add_to_partials(const Tiles& at, int owned, int side, int share,
                                                float times,
                                                const float (&sums)[Tiles::kWidth / 8][4]) {
  const Plan& plan = at.plan;
  const int64_t plane = (2 * side + share) * plan.partial_row(plan.items());
  const int64_t first =
      plane + plan.partial_row(at.task.first_item + at.state.number) + 16 * owned + at.g;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float* row = at.task.work.partial_z + (first + 8 * r) * Tiles::kWidth + 2 * at.c;
#pragma unroll
    for (int n = 0; n < Tiles::kWidth / 8; ++n) {
      float2 value = make_float2(sums[n][2 * r], sums[n][2 * r + 1]);
      float2* to = reinterpret_cast<float2*>(row + 8 * n);
      if (times != 0) value = make_float2(fmaf(to->x, times, value.x), fmaf(to->y, times, value.y));
      *to = value;
    }
  }
}

// η receives −|k|²/(2√D) times the gradient of every key's log features. Of p, 16 keys from `first`
// on in the order of GradientSums::add_to_z; keys past the last have p = 0.
template <class Tiles>
__device__ __forceinline__ void add_norms(const Tiles& at, int first, const float (&p)[8],
                                          float (&to_norm)[2]) {
  const float* norms = at.task.work.side[1].norms +
                       (int64_t{at.item.b} * at.plan.heads + at.item.h) * at.plan.tokens;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int key = at.key_tile * kTile + first + 2 * at.c + i % 2 + i / 4 * 8;
    to_norm[i / 2 % 2] -= p[i] * norms[min(key, at.plan.tokens - 1)];
  }
}

}  // namespace dofla::cuda::feature_pairs
