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

template <int kLanes>
__device__ __forceinline__ StepToken await_token(const AttentionStage& s, int h, int d,
                                                 const LanePlacement<kLanes>& placement, Tag tag) {
  const float *q = lane_of(s.q, h, d), *k = lane_of(s.k, h / s.group, d),
              *v = lane_of(s.v, h / s.group, d);
  const uint4 none = make_uint4(tag, tag, tag, tag);
  uint4 words[3] = {none, none, none};
  do {
    if (d < s.width)
      words[0] = load_four_relaxed(q), words[1] = load_four_relaxed(k),
      words[2] = load_four_relaxed(v);
  } while (!__all_sync(kWholeWarp, is_tagged(words[0], tag) && is_tagged(words[1], tag) &&
                                       is_tagged(words[2], tag)));
  StepToken token = {};
  if (d < s.width)
    token.q = untagged(words[0]), token.k = untagged(words[1]), token.v = untagged(words[2]);
  token.q = placement.place(s, s.q_norm, placement.q_norm, token.q);
  token.k = placement.place(s, s.k_norm, placement.k_norm, token.k);
  token.inner_scale = s.inner_scale;
  const float norm_scale =
      s.norm_weight == nullptr ? s.norm_scale : s.norm_scale * s.norm_weight[h / s.group];
  token.key_norm = over_lanes<kLanes>(dot(token.k, token.k)) * norm_scale;
  return token;
}

// The query of another head that reads the same state.
template <int kLanes>
__device__ __forceinline__ float4 await_query(const AttentionStage& s, int h, int d,
                                              const LanePlacement<kLanes>& placement, Tag tag) {
  const float* q = lane_of(s.q, h, d);
  uint4 words = make_uint4(tag, tag, tag, tag);
  do {
    if (d < s.width) words = load_four_relaxed(q);
  } while (!__all_sync(kWholeWarp, is_tagged(words, tag)));
  return placement.place(s, s.q_norm, placement.q_norm, d < s.width ? untagged(words) : float4{});
}

}  // namespace dofla::cuda
