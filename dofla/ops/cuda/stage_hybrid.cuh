// The stage of attention to keys that a cache holds, with or without features beside them: one
// block a key head with all its query heads. The ring brings the cache, directions and sums. What
// does not depend on the token, keys that leave included, is done before the token is waited for.
#pragma once

#include "dofla/ops/cuda/hybrid_attention_step.cuh"
#include "dofla/ops/cuda/stage_attention.cuh"

namespace dofla::cuda {

struct ConsumerTeam {
  static constexpr int kThreads = StageBlock::kConsumerThreads;
  // Not the barrier after a slot: the other warps do not come here.
  static __device__ __forceinline__ void meet() {
    __syncwarp();
    asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
  }
};

// A query has two bf16 parts, as all that enters a product.
template <int kWidth>
using StageHybridStep = HybridStep<__nv_bfloat16, kWidth, 2, ConsumerTeam>;

static_assert(kMostQueriesTogether == kQueriesTogether, "one round of query heads");

// Shared memory that a key head takes beside the ring.
template <int kWidth>
__host__ __device__ inline HybridLists stage_lists(const HybridSizes& sizes, int begin) {
  return HybridLists::from(
      begin + static_cast<int>(sizeof(typename StageHybridStep<kWidth>::Shared)), sizes);
}

__device__ __forceinline__ int key_heads_of(const HybridStage& s) {
  return s.attention.heads / s.attention.group;
}

// Bytes of a row in a slot.
__device__ __forceinline__ int key_bytes(int width) {
  return width * static_cast<int>(sizeof(__nv_bfloat16));
}
__device__ __forceinline__ int feature_bytes(int width) {
  return width * static_cast<int>(sizeof(float));
}

// What the block of a key head knows before it looks at the token.
struct StageCache {
  KeyHeadPlace place;
  int held;
  bool full, any_left;
  int pairs, states;  // that are looked at

  __device__ __forceinline__ StageCache(const HybridStage& s, int key_head, int64_t position)
      : place(s.places[key_head]) {
    held = s.evicts ? keys_after(position, place.limit, s.block) : static_cast<int>(position);
    full = s.evicts && held == place.limit;
    any_left = s.pairs != nullptr && position >= place.limit;
    const int32_t* own = s.pairs + key_head * s.attention.group;
    pairs = any_left ? own[s.attention.group] - own[0] : 0;
    states = pairs / s.attention.sharing;
  }

  __device__ __forceinline__ HybridPacking packing(int width) const {
    return hybrid_packing(held, full, pairs, states, key_bytes(width), feature_bytes(width),
                          RingSlots::kBytes);
  }
};

__device__ __forceinline__ HybridHead<__nv_bfloat16> head_of_stage(const HybridStage& s,
                                                                   int key_head,
                                                                   const StageCache& cache) {
  const AttentionStage& attention = s.attention;
  const int64_t place = cache.place.first, width = attention.width;
  HybridHead<__nv_bfloat16> h = {};
  h.keys = static_cast<__nv_bfloat16*>(s.keys) + place * width;
  h.values = static_cast<__nv_bfloat16*>(s.values) + place * width;
  h.score = s.score + place;
  h.limit = cache.place.limit, h.held = cache.held;
  h.block = s.block, h.sinks = s.sinks, h.recent = s.recent;
  h.evicts = s.evicts, h.by_score = s.by_score, h.any_left = cache.any_left;
  h.first_score = cache.place.first_score, h.decay = s.decay, h.scale = s.scale;
  h.group = attention.group, h.width = attention.width;
  h.packed = true, h.packed_cache = true;
  h.sharing = attention.sharing;
  if (s.pairs == nullptr) return h;
  h.pairs = s.pairs + key_head * attention.group;
  const int pair = h.pairs[0], first = pair / attention.sharing;
  h.z = attention.z + first * width, h.log_alpha = attention.log_alpha + first;
  h.directions = nullptr;  // they come by way of the ring
  h.sums = {attention.sums.log_max + first, attention.sums.a + first,
            attention.sums.b + first * width};
  h.inner_scale = attention.inner_scale, h.norm_scale = attention.norm_scale;
  h.norm_weight = attention.norm_weight == nullptr ? 1 : attention.norm_weight[key_head];
  return h;
}

// A warp waits for a query, and one more for the new key and its value.
template <int kWidth>
__device__ __forceinline__ void await_heads(const AttentionStage& s, int key_head, int64_t position,
                                            Tag tag, const StageHybridStep<kWidth>& step) {
  constexpr int kLanes = kWidth / 4;
  const int warp = step.warp(), d = step.column();
  if (warp > s.group) return;
  const LanePlacement<kLanes> placement(s, d, position);
  if (warp < s.group) {
    step.put_query(warp, await_query<kLanes>(s, key_head * s.group + warp, d, placement, tag));
  } else {
    const KeyAndValue newest = await_key<kLanes>(s, key_head, d, placement, tag);
    step.put_newest(newest.k, newest.v);
  }
}

template <int kWidth>
__device__ __forceinline__ void compute_key_head(const HybridStage& s, int key_head,
                                                 int64_t position, Tag tag, RingBuffer& ring,
                                                 int& buffer,
                                                 typename StageHybridStep<kWidth>::Shared& shared) {
  using Step = StageHybridStep<kWidth>;
  const AttentionStage& attention = s.attention;
  const StageCache cache(s, key_head, position);
  const HybridHead<__nv_bfloat16>& h = shared.head;
  if (threadIdx.x == 0) {
    shared.head = head_of_stage(s, key_head, cache);
    const auto begin =
        static_cast<int>(reinterpret_cast<unsigned char*>(&shared) - shared_memory());
    shared.lists = stage_lists<kWidth>({cache.place.limit, s.block, s.evicts, attention.group,
                                        s.most_pairs, s.most_states, Step::kWarps},
                                       begin);
  }
  ConsumerTeam::meet();
  const HybridEviction<__nv_bfloat16, kWidth, ConsumerTeam> eviction = {h, shared.lists};
  Step step(shared, 0);
  step.begin(key_bytes(attention.width), feature_bytes(attention.width), RingSlots::kBytes);
  eviction.load_scores();
  ConsumerTeam::meet();
  if (cache.full) {
    eviction.choose();
    if (cache.any_left) eviction.fold();
    ConsumerTeam::meet();  // what leaves has been read, and the features are whole
  }
  step.load_features();
  const auto await_slot = [&] {
    ring.wait();
    if (cache.full) eviction.move_slot(ring.tile(), shared.slot, shared.packing);
  };
  const auto end_slot = [&] {
    end_step();
    buffer ^= 1;
    ring.next();
  };
  await_slot();
  await_heads<kWidth>(attention, key_head, position, tag, step);
  ConsumerTeam::meet();
  typename Step::Progress seen;
  while (true) {
    step.take(ring.tile(), seen);
    if (shared.packing.done()) break;
    end_slot();
    step.next_slot();
    await_slot();
  }
  if (cache.full && cache.any_left) step.look_at_changed_sums();
  step.finish([&](int query, int d, float value) {
    publish(attention.y, attention.heads * attention.width,
            (key_head * attention.group + query) * attention.width + d, value, tag);
  });
  step.rate_keys();
  step.append();
  end_slot();
}

// `memory` is shared by all that the consumer warps do between two slots.
template <int kWidth>
__device__ __forceinline__ void compute_hybrid(const HybridStage& s, int64_t position, Tag tag,
                                               RingBuffer& ring, int& buffer, void* memory) {
  auto& shared = *static_cast<typename StageHybridStep<kWidth>::Shared*>(memory);
#pragma unroll 1
  for (int head = first_state(); head < key_heads_of(s); head += gridDim.x)
    compute_key_head<kWidth>(s, head, position, tag, ring, buffer, shared);
}

// The epilogue warp only takes part in the barriers here.
__device__ __forceinline__ void finish_hybrid(const HybridStage& s, int64_t position, int& buffer) {
  for (int head = first_state(); head < key_heads_of(s); head += gridDim.x) {
    HybridPacking packing = StageCache(s, head, position).packing(s.attention.width);
    do {
      packing.next();
      end_step();
      buffer ^= 1;
    } while (!packing.done());
  }
}

// The producer warp's part: a lane for each kind of rows.
__device__ __forceinline__ void prefetch_hybrid(const HybridStage& s, int64_t position,
                                                RingProducer& producer) {
  const AttentionStage& attention = s.attention;
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int head = first_state(); head < key_heads_of(s); head += gridDim.x) {
    const StageCache cache(s, head, position);
    HybridPacking packing = cache.packing(attention.width);
    const int64_t pair = cache.any_left ? s.pairs[head * attention.group] : 0,
                  state = pair / attention.sharing;
    const auto* directions = attention.u == nullptr ? attention.z : attention.u;
    const void* const from[HybridRows::kKinds] = {
        directions + pair * attention.width,
        static_cast<const __nv_bfloat16*>(s.keys) + int64_t{cache.place.first} * attention.width,
        static_cast<const __nv_bfloat16*>(s.values) + int64_t{cache.place.first} * attention.width,
        attention.sums.b + state * attention.width};
    do {
      const HybridSlot slot = packing.next();
      int bytes = 0;
#pragma unroll
      for (int k = 0; k < HybridRows::kKinds; ++k) bytes += slot.count[k] * packing.bytes[k];
      unsigned char* to = producer.begin(bytes);
#pragma unroll
      for (int k = 0; k < HybridRows::kKinds; ++k)
        if (lane == k && slot.count[k] > 0)
          bulk_copy(to + slot.offset[k],
                    static_cast<const unsigned char*>(from[k]) +
                        static_cast<int64_t>(slot.first[k]) * packing.bytes[k],
                    slot.count[k] * packing.bytes[k], producer.barrier());
      producer.ring.next();
    } while (!packing.done());
  }
}

}  // namespace dofla::cuda
