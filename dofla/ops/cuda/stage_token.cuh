// A token as the attention stage sees it: queries, keys and values as soon as they are published,
// with their norm and at their position.
#pragma once

#include "dofla/ops/cuda/head_rows.cuh"
#include "dofla/ops/cuda/linear_attention_step.cuh"
#include "dofla/ops/cuda/rotation.cuh"
#include "dofla/ops/cuda/tagged_row.cuh"

namespace dofla::cuda {

// Norm and rotation of a lane's four coordinates, as far as they do not depend on the token.
template <int kLanes>
struct LanePlacement {
  float4 q_norm, k_norm, cosine = {1, 1, 1, 1}, sine = {};
  int partner = threadIdx.x % 32;  // the lane that has the coordinates which turn with these

  __device__ __forceinline__ LanePlacement(const AttentionStage& s, int d, int64_t position) {
    const auto weights = [&](const float* norm) {
      return norm == nullptr || d >= s.width
                 ? float4{}
                 : make_float4(norm[d], norm[d + 1], norm[d + 2], norm[d + 3]);
    };
    q_norm = weights(s.q_norm), k_norm = weights(s.k_norm);
    if (d >= 2 * s.pairs) return;
    const bool first = d < s.pairs;
    partner += first ? s.pairs / 4 : -(s.pairs / 4);
    const float* frequencies = s.frequencies + (first ? d : d - s.pairs);
    Turn turn[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) turn[i] = turn_at(position, frequencies[i]);
    const float sign = first ? -1 : 1;
    cosine = make_float4(turn[0].cosine, turn[1].cosine, turn[2].cosine, turn[3].cosine);
    sine = make_float4(sign * turn[0].sine, sign * turn[1].sine, sign * turn[2].sine,
                       sign * turn[3].sine);
  }

  __device__ __forceinline__ float4 place(const AttentionStage& s, const float* norm, float4 weight,
                                          float4 x) const {
    if (norm != nullptr) {
      const float squares = over_lanes<kLanes>(dot(x, x)) / static_cast<float>(s.width);
      const float scale = rsqrtf(squares + s.epsilon);
      x = make_float4(x.x * scale * weight.x, x.y * scale * weight.y, x.z * scale * weight.z,
                      x.w * scale * weight.w);
    }
    if (s.pairs == 0) return x;
    const auto other = [&](float value) { return __shfl_sync(kWholeWarp, value, partner); };
    const float4 partners = make_float4(other(x.x), other(x.y), other(x.z), other(x.w));
    return make_float4(
        turned(x.x, partners.x, cosine.x, sine.x), turned(x.y, partners.y, cosine.y, sine.y),
        turned(x.z, partners.z, cosine.z, sine.z), turned(x.w, partners.w, cosine.w, sine.w));
  }
};

// This lane's coordinates of a head, in the copy of the row that its block reads.
__device__ __forceinline__ const float* lane_of(const HeadRows& rows, int head, int d) {
  return head_of<float>(rows, 0, head) + own_copy(static_cast<int>(rows.batch_step)) + d;
}

// A warp waits for four numbers a lane of several rows; zeros in lanes that are not inside.
template <int kRows>
__device__ __forceinline__ void await_fours(const float* const (&rows)[kRows], bool inside, Tag tag,
                                            float4 (&fours)[kRows]) {
  uint4 words[kRows];
  bool there;
  do {
    there = true;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      words[i] = make_uint4(tag, tag, tag, tag);
      if (inside) words[i] = load_four_relaxed(rows[i]);
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) there = there && is_tagged(words[i], tag);
  } while (!__all_sync(kWholeWarp, there));
#pragma unroll
  for (int i = 0; i < kRows; ++i) fours[i] = inside ? untagged(words[i]) : float4{};
}

template <int kLanes>
__device__ __forceinline__ StepToken await_token(const AttentionStage& s, int h, int d,
                                                 const LanePlacement<kLanes>& placement, Tag tag) {
  float4 heads[3];
  await_fours({lane_of(s.q, h, d), lane_of(s.k, h / s.group, d), lane_of(s.v, h / s.group, d)},
              d < s.width, tag, heads);
  StepToken token = {};
  token.q = placement.place(s, s.q_norm, placement.q_norm, heads[0]);
  token.k = placement.place(s, s.k_norm, placement.k_norm, heads[1]);
  token.v = heads[2];
  token.inner_scale = s.inner_scale;
  const float norm_scale =
      s.norm_weight == nullptr ? s.norm_scale : s.norm_scale * s.norm_weight[h / s.group];
  token.key_norm = over_lanes<kLanes>(dot(token.k, token.k)) * norm_scale;
  return token;
}

// The query of a head alone.
template <int kLanes>
__device__ __forceinline__ float4 await_query(const AttentionStage& s, int h, int d,
                                              const LanePlacement<kLanes>& placement, Tag tag) {
  float4 query[1];
  await_fours({lane_of(s.q, h, d)}, d < s.width, tag, query);
  return placement.place(s, s.q_norm, placement.q_norm, query[0]);
}

// And what comes of the token to a cache.
struct KeyAndValue {
  float4 k, v;
};
template <int kLanes>
__device__ __forceinline__ KeyAndValue await_key(const AttentionStage& s, int key_head, int d,
                                                 const LanePlacement<kLanes>& placement, Tag tag) {
  float4 heads[2];
  await_fours({lane_of(s.k, key_head, d), lane_of(s.v, key_head, d)}, d < s.width, tag, heads);
  return {placement.place(s, s.k_norm, placement.k_norm, heads[0]), heads[1]};
}

}  // namespace dofla::cuda
