// How the warps of a block share the work on a list of stages. Sixteen compute; one fills slots of
// shared memory with what they will need, as far ahead as there is room; and one ends products: it
// adds up what the sixteen found and hands it over, while they go on. They work in turns, one for
// each slot, and all meet at the end of a turn: the slot is then free, and what was told is told.
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
constexpr int kFewestSlots = 2;  // a product waits for its norm's vectors and a tile together
// Outputs of a tile; one lane ends each.
constexpr int kMostTileRows = 32;

__device__ __forceinline__ void end_turn() {
  __syncwarp();
  asm volatile("bar.sync 0;" ::: "memory");
}

// The slots as those see them that read: one after another.
struct TileRing {
  unsigned char* slots;
  uint64_t* full;  // [count]
  int count;
  int slot = 0;
  uint32_t odd = 0;

  __device__ __forceinline__ void next() {
    if (++slot < count) return;
    slot = 0;
    odd ^= 1;
  }
  // What is in the slot; a wait for it comes before.
  __device__ __forceinline__ const unsigned char* tile() const { return slots + slot * kSlotBytes; }
  __device__ __forceinline__ void wait() const { wait_for_phase(&full[slot], odd); }
};

// The same slots as the warp sees them that fills. It comes to the end of a turn when it has no
// free slot left.
struct RingFiller {
  TileRing ring;
  int filled = 0;  // slots that are not read yet

  // Waits for a free slot. So many bytes will be copied to what it returns, for barrier().
  __device__ __forceinline__ unsigned char* begin(int bytes) {
    if (filled == ring.count)
      end_turn();
    else
      ++filled;
    if (threadIdx.x % 32 == 0) arrive_expecting(&ring.full[ring.slot], bytes);
    __syncwarp();
    return ring.slots + ring.slot * kSlotBytes;
  }
  __device__ __forceinline__ uint64_t* barrier() const { return &ring.full[ring.slot]; }
  __device__ __forceinline__ void finish() {
    for (; filled > 0; --filled) end_turn();
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
