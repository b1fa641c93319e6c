// The attention stage: one block a head, its warps side by side over the features, twice as many at
// a time as there are threads for four coordinates each. Heads are assigned from the last block
// down, because the first ones are busy with the stage before.
#pragma once

#include "dofla/ops/cuda/head_rows.cuh"
#include "dofla/ops/cuda/linear_attention_step.cuh"
#include "dofla/ops/cuda/rotation.cuh"
#include "dofla/ops/cuda/stage_ring.cuh"
#include "dofla/ops/cuda/tagged_row.cuh"

namespace dofla::cuda {

__device__ __forceinline__ int first_head() {
  return static_cast<int>(gridDim.x - 1 - blockIdx.x);
}

struct HeadFeatures {
  int first, count;
};
__device__ __forceinline__ HeadFeatures features_of(const AttentionStage& s, int head) {
  const int first = static_cast<int>(s.offsets[head]);
  return {first, static_cast<int>(s.offsets[head + 1]) - first};
}

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

template <int kLanes>
__device__ __forceinline__ StepToken await_token(const AttentionStage& s, int h, int d,
                                                 int64_t position, Tag tag) {
  const LanePlacement<kLanes> placement(s, d, position);
  const auto at = [&](const HeadRows& of, int head) {
    return head_of<float>(of, 0, head) + own_copy(static_cast<int>(of.batch_step)) + d;
  };
  const float *q = at(s.q, h), *k = at(s.k, h / s.group), *v = at(s.v, h / s.group);
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
  token.key_norm = over_lanes<kLanes>(dot(token.k, token.k)) * s.norm_scale;
  return token;
}

// Two features a thread.
template <int kLanes>
using StageRound = FeatureRound<StageBlock::kConsumerThreads, kLanes, 2>;

// Directions and sums come by way of the ring, directions first.
template <int kLanes>
__device__ __forceinline__ void load_round(StageRound<kLanes>& round, const AttentionStage& s,
                                           int first, int count, RingBuffer& ring) {
  round.load_scalars(s.log_alpha + first, s.sums, first, count);
  ring.wait();
  const auto* z = reinterpret_cast<const float*>(ring.tile());
  const auto* sums = z + min(round.kCount, count) * s.width;
  round.load_vectors(count, [&](int row, int column) {
    const int at = row * s.width + column;
    if (column >= s.width) return DirectionAndSums{};
    return DirectionAndSums{*reinterpret_cast<const float4*>(z + at),
                            *reinterpret_cast<const float4*>(sums + at)};
  });
}

template <int kLanes>
__device__ __forceinline__ void compute_attention(
    const AttentionStage& s, int64_t position, Tag tag, RingBuffer& ring, int& buffer,
    FoundByWarps<StageBlock::kConsumerWarps, kLanes> (&found_in)[2]) {
  StageRound<kLanes> round;
#pragma unroll 1
  for (int h = first_head(); h < s.heads; h += gridDim.x) {
    const auto [first, count] = features_of(s, h);
    load_round(round, s, first, count, ring);
    StepToken token = await_token<kLanes>(s, h, round.column(), position, tag);
    token.log_count = logf(static_cast<float>(count));
    Found found;
#pragma unroll 1
    for (int start = 0; start < count; start += round.kCount) {
      if (start > 0) load_round(round, s, first + start, count - start, ring);
      round.advance(token, count - start, found);
      if (start + round.kCount >= count) break;
      round.store(s.sums, first + start, count - start, s.width, true);
      end_step();
      buffer ^= 1;
      ring.next();
    }
    FoundByWarps<StageBlock::kConsumerWarps, kLanes>& by_warps = found_in[buffer];
    by_warps.put(found);
    end_step();
    buffer ^= 1;
    ring.next();
    if (const int i = threadIdx.x; i < s.width)
      publish(s.y, s.heads * s.width, h * s.width + i, by_warps.attended(i), tag);
    const int last = (count - 1) / round.kCount * round.kCount;
    round.store(s.sums, first + last, count - last, s.width, true);
  }
}

// The epilogue warp only takes part in the barriers here.
template <int kLanes>
__device__ __forceinline__ void finish_attention(const AttentionStage& s, int& buffer) {
  for (int h = first_head(); h < s.heads; h += gridDim.x)
    for (int left = features_of(s, h).count; left > 0; left -= StageRound<kLanes>::kCount) {
      end_step();
      buffer ^= 1;
    }
}

// The producer warp's part: directions and sums of as many features as compute_attention uses at a
// time.
template <int kLanes>
__device__ __forceinline__ void prefetch_attention(const AttentionStage& s,
                                                   RingProducer& producer) {
  constexpr int kCount = StageRound<kLanes>::kCount;
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int h = first_head(); h < s.heads; h += gridDim.x) {
    const auto [first, count] = features_of(s, h);
#pragma unroll 1
    for (int start = 0; start < count; start += kCount) {
      const int bytes = min(kCount, count - start) * s.width * static_cast<int>(sizeof(float));
      unsigned char* to = producer.begin(2 * bytes);
      if (lane < 2)
        bulk_copy(to + lane * bytes,
                  (lane == 0 ? s.z : s.sums.b) + static_cast<int64_t>(first + start) * s.width,
                  bytes, producer.barrier());
      producer.ring.next();
    }
  }
}

}  // namespace dofla::cuda
