// The attention stage: one block a state, that of a query head or, where features are untied, of a
// key head with all its query heads. Its warps go side by side over the features, twice as many at
// a time as there are threads for four coordinates each. States are assigned from the last block
// down, because the first ones are busy with the stage before.
#pragma once

#include "dofla/ops/cuda/linear_attention_step.cuh"
#include "dofla/ops/cuda/stage_ring.cuh"
#include "dofla/ops/cuda/stage_token.cuh"

namespace dofla::cuda {

__device__ __forceinline__ int first_state() {
  return static_cast<int>(gridDim.x - 1 - blockIdx.x);
}
__device__ __forceinline__ int states_of(const AttentionStage& s) {
  return s.heads / s.sharing;
}

struct StateFeatures {
  int first, count;
};
__device__ __forceinline__ StateFeatures features_of(const AttentionStage& s, int state) {
  const int first = static_cast<int>(s.offsets[state]);
  return {first, static_cast<int>(s.offsets[state + 1]) - first};
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

// The same again from device memory, where this block has written the sums.
template <int kLanes>
__device__ __forceinline__ void load_sums_again(StageRound<kLanes>& round, const AttentionStage& s,
                                                int first, int count) {
  round.load_scalars(s.log_alpha + first, s.sums, first, count);
  round.load_vectors(count, [&](int row, int column) {
    if (column >= s.width) return DirectionAndSums{};
    const float* sums = s.sums.b + static_cast<int64_t>(first + row) * s.width + column;
    return DirectionAndSums{{}, *reinterpret_cast<const float4*>(sums)};
  });
}

// One key head with all its query heads: first the state moves on, round by round, then the queries
// look at it, one head after the other. Their directions follow each other in the ring.
template <int kLanes>
__device__ __forceinline__ void compute_group_attention(
    const AttentionStage& s, int state, int64_t position, Tag tag, RingBuffer& ring, int& buffer,
    FoundByWarps<StageBlock::kConsumerWarps, kLanes> (&found_in)[2]) {
  using Round = StageRound<kLanes>;
  Round round;
  const StateFeatures features = features_of(s, state);
  const int first = features.first, count = features.count;
  const int d = round.column(), head = state * s.sharing;
  load_round(round, s, first, count, ring);
  const LanePlacement<kLanes> placement(s, d, position);
  StepToken token = await_token<kLanes>(s, head, d, placement, tag);
  token.log_count = logf(static_cast<float>(count));
  const auto end_slot = [&] {
    end_step();
    buffer ^= 1;
    ring.next();
  };
#pragma unroll 1
  for (int start = 0; start < count; start += Round::kCount) {
    if (start > 0) load_round(round, s, first + start, count - start, ring);
    round.advance(token);
    round.store(s.sums, first + start, count - start, s.width, true);
    end_slot();
  }
#pragma unroll 1
  for (int i = 0; i < s.sharing; ++i) {
    if (i > 0) token.q = await_query<kLanes>(s, head + i, d, placement, tag);
    Found found;
#pragma unroll 1
    for (int start = 0; start < count; start += Round::kCount) {
      if (count > Round::kCount) load_sums_again(round, s, first + start, count - start);
      ring.wait();
      const auto* directions = reinterpret_cast<const float*>(ring.tile());
      const auto direction = [&](int held) {
        const int row = round.row(held);
        return start + row < count && d < s.width
                   ? *reinterpret_cast<const float4*>(directions + row * s.width + d)
                   : float4{};
      };
      round.look(token, count - start, direction, found);
      if (start + Round::kCount < count) end_slot();
    }
    FoundByWarps<StageBlock::kConsumerWarps, kLanes>& by_warps = found_in[buffer];
    by_warps.put(found);
    end_slot();
    if (const int c = threadIdx.x; c < s.width)
      publish(s.y, s.heads * s.width, (head + i) * s.width + c, by_warps.attended(c), tag);
  }
}

// One query head with features of its own.
template <int kLanes>
__device__ __forceinline__ void compute_head_attention(
    const AttentionStage& s, int h, int64_t position, Tag tag, RingBuffer& ring, int& buffer,
    FoundByWarps<StageBlock::kConsumerWarps, kLanes> (&found_in)[2]) {
  StageRound<kLanes> round;
  const auto [first, count] = features_of(s, h);
  load_round(round, s, first, count, ring);
  const LanePlacement<kLanes> placement(s, round.column(), position);
  StepToken token = await_token<kLanes>(s, h, round.column(), placement, tag);
  token.log_count = logf(static_cast<float>(count));
  Found found;
#pragma unroll 1
  for (int start = 0; start < count; start += round.kCount) {
    if (start > 0) load_round(round, s, first + start, count - start, ring);
    round.advance(token);
    round.look(token, count - start, found);
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

template <int kLanes, bool kUntied>
__device__ __forceinline__ void compute_attention(
    const AttentionStage& s, int64_t position, Tag tag, RingBuffer& ring, int& buffer,
    FoundByWarps<StageBlock::kConsumerWarps, kLanes> (&found_in)[2]) {
#pragma unroll 1
  for (int state = first_state(); state < states_of(s); state += gridDim.x) {
    if constexpr (kUntied)
      compute_group_attention<kLanes>(s, state, position, tag, ring, buffer, found_in);
    else
      compute_head_attention<kLanes>(s, state, position, tag, ring, buffer, found_in);
  }
}

// The epilogue warp only takes part in the barriers here.
template <int kLanes>
__device__ __forceinline__ void finish_attention(const AttentionStage& s, int& buffer) {
  for (int h = first_state(); h < states_of(s); h += gridDim.x) {
    constexpr int kCount = StageRound<kLanes>::kCount;
    const int rounds = (features_of(s, h).count + kCount - 1) / kCount;
    for (int left = rounds * (s.u == nullptr ? 1 : 1 + s.sharing); left > 0; --left) {
      end_step();
      buffer ^= 1;
    }
  }
}

// The producer warp's part: directions and sums of as many features as compute_attention uses at a
// time, then the directions of each query head that has its own.
template <int kLanes>
__device__ __forceinline__ void prefetch_attention(const AttentionStage& s,
                                                   RingProducer& producer) {
  constexpr int kCount = StageRound<kLanes>::kCount;
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int h = first_state(); h < states_of(s); h += gridDim.x) {
    const StateFeatures features = features_of(s, h);
    const int first = features.first, count = features.count;
    const auto bytes_at = [&](int start) {
      return min(kCount, count - start) * s.width * static_cast<int>(sizeof(float));
    };
#pragma unroll 1
    for (int start = 0; start < count; start += kCount) {
      const int bytes = bytes_at(start);
      unsigned char* to = producer.begin(2 * bytes);
      if (lane < 2)
        bulk_copy(to + lane * bytes,
                  (lane == 0 ? s.z : s.sums.b) + static_cast<int64_t>(first + start) * s.width,
                  bytes, producer.barrier());
      producer.ring.next();
    }
    const int own_queries = s.u == nullptr ? 0 : s.sharing;
#pragma unroll 1
    for (int i = 0; i < own_queries; ++i) {
      const float* directions =
          s.u +
          (static_cast<int64_t>(first) * s.sharing + static_cast<int64_t>(i) * count) * s.width;
#pragma unroll 1
      for (int start = 0; start < count; start += kCount) {
        unsigned char* to = producer.begin(bytes_at(start));
        if (lane == 0)
          bulk_copy(to, directions + static_cast<int64_t>(start) * s.width, bytes_at(start),
                    producer.barrier());
        producer.ring.next();
      }
    }
  }
}

}  // namespace dofla::cuda
