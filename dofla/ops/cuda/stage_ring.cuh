// How the warps of a block divide the work on a list of stages (docs/kernels.md, "The persistent
// decode kernel"). Sixteen consumer warps compute. A producer warp prefetches what they will need
// into the slots of a ring buffer in shared memory, as far ahead as there are free slots. An
// epilogue warp adds up the partial sums of the consumers and publishes the results while they go
// on. All warps of the block meet at a barrier after each slot: it is then free, and what was
// written to shared memory is visible.
#pragma once

#include "dofla/ops/cuda/bulk_copy.cuh"
#include "dofla/ops/cuda/stage_list.h"

namespace dofla::cuda {

struct StageBlock {
  static constexpr int kConsumerWarps = 16, kConsumerThreads = 32 * kConsumerWarps;
  static constexpr int kProducerWarp = kConsumerWarps, kEpilogueWarp = kConsumerWarps + 1;
  static constexpr int kThreads = kConsumerThreads + 64;
  // Outputs of a tile; the epilogue warp has one lane for each.
  static constexpr int kMostTileRows = 32;
};

struct RingSlots {
  // One holds a tile: 24 outputs of 768 inputs, six of 3072.
  static constexpr int kBytes = 38 << 10;
  static constexpr int kMost = 8;
  static constexpr int kFewest = 2;  // a product needs its norm's vectors and a tile together
};

// The barrier after a slot.
__device__ __forceinline__ void end_step() {
  __syncwarp();
  asm volatile("bar.sync 0;" ::: "memory");
}

// The ring buffer as its readers see it: one slot after another.
struct RingBuffer {
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
  // The contents of the slot, after wait().
  __device__ __forceinline__ const unsigned char* tile() const {
    return slots + slot * RingSlots::kBytes;
  }
  __device__ __forceinline__ void wait() const { wait_for_phase(&full[slot], odd); }
};

// The ring buffer as the producer warp sees it. It takes part in the barrier after a slot only when
// it has no free slot left.
struct RingProducer {
  RingBuffer ring;
  int filled = 0;  // slots that are not read yet

  // Waits for a free slot and returns it. So many bytes will be copied to it, signalled to
  // barrier().
  __device__ __forceinline__ unsigned char* begin(int bytes) {
    if (filled == ring.count)
      end_step();
    else
      ++filled;
    if (threadIdx.x % 32 == 0) arrive_expecting(&ring.full[ring.slot], bytes);
    __syncwarp();
    return ring.slots + ring.slot * RingSlots::kBytes;
  }
  __device__ __forceinline__ uint64_t* barrier() const { return &ring.full[ring.slot]; }
  __device__ __forceinline__ void finish() {
    for (; filled > 0; --filled) end_step();
  }
};

// Every warp reads the list of stages by itself, and prefetches the next stage while it works on
// one.
struct StageReader {
  static constexpr int kWords = sizeof(Stage) / sizeof(uint32_t);
  static constexpr int kHeld = (kWords + 31) / 32;

  const uint32_t* from;
  const uint32_t* end;
  uint32_t* own;  // [kWords], in shared memory
  uint32_t held[kHeld];

  __device__ __forceinline__ StageReader(const StageList& list, Stage* memory)
      : from(reinterpret_cast<const uint32_t*>(list.stages)),
        end(from + list.count * kWords),
        own(reinterpret_cast<uint32_t*>(memory)) {
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
