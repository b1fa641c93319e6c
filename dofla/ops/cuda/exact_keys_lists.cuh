// What the block that chooses which keys leave is given, and the lists that it keeps.
#pragma once

#include "dofla/ops/cuda/exact_keys_kernels.h"
#include "dofla/ops/cuda/least_attended.cuh"

namespace dofla::cuda {

struct EvictArguments {
  HeadRows q, k;
  const float* before;  // [B, ΣK]
  EvictionsOut to;
  void* slots;  // [B, Hkv, most_slots, stride] in global memory, or null for shared memory
  int64_t kept_row;
  int places, order_row, key_rows;  // of a sequence, of a head, of a head
  int group, tokens, width, block, sinks, recent;
  int times_together;  // of which `kept` has the first
  int units;           // pairs of query heads, or single ones, that are taken at a time
  int most_slots;      // of any head
  float log2_scale, decay;
  bool packed_q, packed_k;
  KeyCache cache[kMostKeyHeads];
};

// A warp multiplies 32 slots at a time.
constexpr int kSlotTile = 32;
__host__ __device__ inline int slots_for(int limit, int block) {
  return (limit + block + kSlotTile - 1) / kSlotTile * kSlotTile;
}

// What a block has in shared memory beside keys and queries. Lists of slots are there twice: while
// one is read the next is written.
struct EvictLists {
  float* found;     // [units, slots]: attention of these tokens' queries, decayed
  float* score;     // [slots]
  uint32_t* rated;  // [K, in fours]: scores of those that may leave, by age
  int* index;       // [slots]: the key, or kNoKey
  int* by_age;      // [2, slots]: slots of the keys that are held, oldest first
  int* leaving;     // [block, in fours]: places of those that leave
  int* spare;       // [2, block]: slots of the next segment
  int slots, block;

  __device__ int* by_age_at(int n) const { return by_age + n % 2 * slots; }
  __device__ int* spare_at(int n) const { return spare + n % 2 * block; }
};

inline int64_t list_words(const EvictArguments& a) {
  return (a.units + 5) * int64_t{a.most_slots} + in_fours(a.block) + 2 * a.block;
}

__device__ __forceinline__ EvictLists lists_at(const EvictArguments& a, void* at) {
  EvictLists s;
  s.found = static_cast<float*>(at);
  s.score = s.found + a.units * a.most_slots;
  s.rated = reinterpret_cast<uint32_t*>(s.score + a.most_slots);
  s.index = reinterpret_cast<int*>(s.rated + a.most_slots);
  s.by_age = s.index + a.most_slots;
  s.leaving = s.by_age + 2 * a.most_slots;
  s.spare = s.leaving + in_fours(a.block);
  s.slots = a.most_slots, s.block = a.block;
  return s;
}

}  // namespace dofla::cuda
