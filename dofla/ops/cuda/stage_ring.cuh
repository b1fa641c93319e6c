// How the warps of a block share the work on a list of stages. Sixteen compute; one fills slots of
// shared memory with what they will need, as far ahead as there is room; and one ends products: it
// adds up what the sixteen found and hands it over, while they go on.
#pragma once

#include "dofla/ops/cuda/bulk_copy.cuh"
#include "dofla/ops/cuda/stage_list.h"

namespace dofla::cuda {

constexpr int kWarps = 16, kThreads = 32 * kWarps;  // that compute
constexpr int kFillingWarp = kWarps, kEndingWarp = kWarps + 1;
constexpr int kAllThreads = kThreads + 64;

// Room for a tile: 24 outputs of 768 inputs, six of 3072.
constexpr int kSlotBytes = 38 << 10;
constexpr int kMostSlots = 8;
// Outputs of a tile; one lane ends each.
constexpr int kMostTileRows = 32;

// A barrier of the warps that compute.
__device__ __forceinline__ void meet() {
  asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
}

// The slots, in the order in which one warp fills them and all that compute read them.
struct TileRing {
  unsigned char* slots;
  uint64_t *full, *empty;  // [count]
  int count;
  int slot = 0;
  uint32_t odd = 0;

  __device__ __forceinline__ void next() {
    if (++slot < count) return;
    slot = 0;
    odd ^= 1;
  }

  // Waits until the slot is free for so many bytes, whose copies then go to filled().
  __device__ __forceinline__ unsigned char* begin_filling(int bytes) {
    wait_for_phase(&empty[slot], odd ^ 1);
    if (threadIdx.x % 32 == 0) arrive_expecting(&full[slot], bytes);
    __syncwarp();
    return slots + slot * kSlotBytes;
  }
  __device__ __forceinline__ uint64_t* filled() const { return &full[slot]; }

  // What is in the slot; a wait for it comes before.
  __device__ __forceinline__ const unsigned char* tile() const { return slots + slot * kSlotBytes; }
  __device__ __forceinline__ void wait() const { wait_for_phase(&full[slot], odd); }
  __device__ __forceinline__ void wait_for_second() const {
    const bool last = slot + 1 == count;
    wait_for_phase(&full[last ? 0 : slot + 1], last ? odd ^ 1 : odd);
  }
  __device__ __forceinline__ void leave() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(&empty[slot]);
    next();
  }
};

// Every warp goes through the list by itself. The next stage is on its way while it is at one.
struct StageReader {
  static constexpr int kWords = sizeof(Stage) / sizeof(uint32_t);
  static constexpr int kHeld = (kWords + 31) / 32;

  const uint32_t* from;
  const uint32_t* end;
  uint32_t* own;  // [kWords], in shared memory
  uint32_t held[kHeld];

  __device__ __forceinline__ StageReader(const StageList& list, Stage* room)
      : from(reinterpret_cast<const uint32_t*>(list.stages)),
        end(from + list.count * kWords),
        own(reinterpret_cast<uint32_t*>(room)) {
    load();
  }

  __device__ __forceinline__ void load() {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int word = i * 32 + threadIdx.x % 32;
      if (from < end && word < kWords) held[i] = from[word];
    }
  }

  // Null after the last one.
  __device__ __forceinline__ const Stage* next() {
    if (from == end) return nullptr;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      if (const int word = i * 32 + threadIdx.x % 32; word < kWords) own[word] = held[i];
    __syncwarp();
    from += kWords;
    load();
    return reinterpret_cast<const Stage*>(own);
  }
};

}  // namespace dofla::cuda
