// What a step of hybrid attention reads of a key head, in the order in which it needs it: rows of
// four kinds, packed into slots of shared memory of a fixed size. Who fills the slots and who reads
// them follow the same list.
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

namespace dofla::cuda {

struct HybridRows {
  // Directions of queries and the sums of features, in float32; keys and values as the cache has
  // them.
  enum Kind { kDirections, kKeys, kValues, kSums, kKinds };
};

// The rows of a slot: of every kind `count`, from `first` on, that begin after `offset` bytes.
struct HybridSlot {
  int first[HybridRows::kKinds], count[HybridRows::kKinds], offset[HybridRows::kKinds];
};

struct HybridPacking {
  int rows[HybridRows::kKinds];   // in all
  int bytes[HybridRows::kKinds];  // of a row: multiples of 16
  int slot_bytes;                 // at least 16 rows of any kind
  int packed[HybridRows::kKinds] = {};

  // There is a first slot even if nothing is read.
  __host__ __device__ __forceinline__ HybridSlot next() {
    HybridSlot slot;
    int used = 0;
    bool open = true;
#pragma unroll
    for (int k = 0; k < HybridRows::kKinds; ++k) {
      const int left = rows[k] - packed[k], space = (slot_bytes - used) / bytes[k];
      // Tensor cores take sixteen rows at a time: those that go on in another slot are whole tiles.
      const int fit = !open ? 0 : left <= space ? left : space / 16 * 16;
      open = open && fit == left;
      slot.first[k] = packed[k], slot.count[k] = fit, slot.offset[k] = used;
      used += fit * bytes[k];
      packed[k] += fit;
    }
    return slot;
  }

  __host__ __device__ __forceinline__ bool done(int kind) const {
    return packed[kind] == rows[kind];
  }
  __host__ __device__ __forceinline__ bool done() const {
    return done(HybridRows::kDirections) && done(HybridRows::kKeys) && done(HybridRows::kValues) &&
           done(HybridRows::kSums);
  }
};

// What a key head reads: `held` keys, and of its features `pairs` directions and `states` sums, if
// some keys have left. While keys leave the sums change: they are read when they are whole.
__host__ __device__ inline HybridPacking hybrid_packing(int held, bool full, int pairs, int states,
                                                        int key_bytes, int feature_bytes,
                                                        int slot_bytes) {
  return {{pairs, held, held, full ? 0 : states},
          {feature_bytes, key_bytes, key_bytes, feature_bytes},
          slot_bytes};
}

// How many keys a cache holds after so many tokens.
__host__ __device__ inline int keys_after(int64_t tokens, int limit, int block) {
  const int64_t times = tokens <= limit ? 0 : (tokens - limit + block - 1) / block;
  return static_cast<int>(tokens - times * block);
}

}  // namespace dofla::cuda
