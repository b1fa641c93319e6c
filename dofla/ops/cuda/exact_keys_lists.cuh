// What the block that chooses which keys leave is given, the lists that it keeps, and in which
// turns it takes the queries.
#pragma once

#include <climits>

#include "dofla/ops/cuda/exact_keys_kernels.h"
#include "dofla/ops/cuda/least_attended.cuh"
#include "dofla/ops/cuda/vector.cuh"

namespace dofla::cuda {

constexpr int kTokens = 8;  // whose queries are taken at a time
constexpr int kNoKey = INT_MAX;

struct EvictArguments {
  HeadRows q, k;
  const float* before;  // [B, ΣK]
  EvictionsOut to;
  void* slots;  // [B, Hkv, most_slots, stride] in global memory, or null for shared memory
  int64_t kept_row;
  int places, order_row, key_rows;  // of a sequence, of a head, of a head
  int group, tokens, width, block, sinks, recent;
  int together_shift;  // log2 of how many evictions come together, of which `kept` has the first
  int tile_warps;      // of a block
  int pairs;           // of tiles that a warp has at most
  int most_slots;      // of any head
  float log2_scale, decay;
  bool packed_q, packed_k;
  KeyCache cache[kMostKeyHeads];
};

// Slots come in pairs of the 16 rows that a tensor core multiplies at a time. Beside the keys that
// are held there is room for two segments: the one that the next queries see, and one on its way.
constexpr int kSlotPair = 32;
__host__ __device__ inline int slots_for(int limit, int block) {
  return (limit + 2 * block + kSlotPair - 1) / kSlotPair * kSlotPair;
}

// What a block has in shared memory beside keys and queries.
struct EvictLists {
  float* score;    // [slots]
  int* index;      // [slots]: the key, or kNoKey
  int* by_age;     // [slots]: slots of the keys that are held, oldest first
  uint32_t* left;  // [slots / 32]: a bit for each slot that the last eviction has freed
  uint32_t* gone;  // [slots / 32]: the same by the places that they had in by_age
  int* spare;      // [4, block]: slots of the segments that come
  int block;

  // Of the segment that comes after so many evictions.
  __device__ int* spare_at(int times) const { return spare + times % 4 * block; }
};

inline int64_t list_words(const EvictArguments& a) {
  return 3 * int64_t{a.most_slots} + 2 * a.most_slots / kSlotPair + 4 * a.block;
}

__device__ __forceinline__ EvictLists lists_at(const EvictArguments& a, void* at) {
  EvictLists s;
  s.score = static_cast<float*>(at);
  s.index = reinterpret_cast<int*>(s.score + a.most_slots);
  s.by_age = s.index + a.most_slots;
  s.left = reinterpret_cast<uint32_t*>(s.by_age + a.most_slots);
  s.gone = s.left + a.most_slots / kSlotPair;
  s.spare = reinterpret_cast<int*>(s.gone + a.most_slots / kSlotPair);
  s.block = a.block;
  return s;
}

// Queries that are taken at once: of `count` tokens from key `first` on, of some heads from `head`
// on. Where `evicts`, keys leave before, and it is the last of `times` that they have.
struct Turn {
  int first, count, head, times;
  bool evicts;
};

struct Turns {
  int limit, block, keys, group, heads;  // heads: of a turn

  // The turn of the tokens from key `first` on, of the first heads.
  __device__ Turn at(int first, int times) const {
    const bool evicts = first == limit + times * block;
    times += evicts;
    return {first, min(kTokens, min(keys, limit + times * block) - first), 0, times, evicts};
  }
  __device__ Turn after(const Turn& t) const {
    if (t.head + heads < group) return {t.first, t.count, t.head + heads, t.times, false};
    return at(t.first + t.count, t.times);
  }
  __device__ bool exists(const Turn& t) const { return t.first < keys; }
};

}  // namespace dofla::cuda
