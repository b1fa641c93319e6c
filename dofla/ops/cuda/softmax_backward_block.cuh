// How a block of the softmax attention's backward by warpgroups (docs/kernels.md, "Softmax
// attention") divides its shared memory and its warps.
#pragma once

#include "dofla/ops/cuda/bulk_ring.cuh"
#include "dofla/ops/cuda/head_rows.cuh"
#include "dofla/ops/cuda/warpgroup_mma.cuh"

namespace dofla::cuda {

// Tiles of this many keys, queries and columns; the columns of narrower heads are filled with 0.
constexpr int kBackwardKeys = 128, kBackwardQueries = 64, kBackwardWidth = 64;

struct WarpgroupBackwardArguments {
  CUtensorMap q, grad_out;  // boxes of kBackwardQueries rows
  CUtensorMap k, v;         // boxes of kBackwardKeys rows
  HeadRowsOut grad_q, grad_k, grad_v;
  // Of every tile of queries, [B, H, tiles, 2, 64]: −log₂ Σ exp and −e of its rows.
  const float* statistics;
  float* partials;  // [B, H, tiles, 64·64]: what tiles of keys have added to grad_q so far,
  int* added;       // [B, H, tiles]: and how many of them have
  int* next_item;
  int heads, group, queries, keys, width, query_tiles, key_tiles, items;
  float scale, log2_scale;
};

// A tile of keys of one key head, with all queries of the group that see them.
struct BackwardItem {
  int b, key_head, key_tile;
  int first_query_tile;
};

// The late tiles of a head come first: they are the first to add to each tile of queries.
__device__ __forceinline__ BackwardItem item_at(const WarpgroupBackwardArguments& a, int item) {
  const int head = item / a.key_tiles, key_heads = a.heads / a.group;
  const int tile = a.key_tiles - 1 - item % a.key_tiles;
  const int first_query = max(tile * kBackwardKeys - (a.keys - a.queries), 0);
  return {head / key_heads, head % key_heads, tile, first_query / kBackwardQueries};
}

// The last key that a tile of queries sees.
__device__ __forceinline__ int last_key(const WarpgroupBackwardArguments& a, int query_tile) {
  return a.keys - a.queries + min((query_tile + 1) * kBackwardQueries, a.queries) - 1;
}

// Calls body(head, query tile) for every step of an item.
template <class Body>
__device__ __forceinline__ void each_step(const WarpgroupBackwardArguments& a,
                                          const BackwardItem& item, const Body& body) {
  for (int h = item.key_head * a.group; h < (item.key_head + 1) * a.group; ++h)
    for (int tile = item.first_query_tile; tile < a.query_tiles; ++tile) body(h, tile);
}

struct BackwardBlock {
  // Two warpgroups have 64 keys each; one has the gradients of queries; the warps of the last one
  // load tiles and store those gradients.
  static constexpr int kKeyWarps = 8, kQueryWarps = 4, kThreads = 512;
  static constexpr int kStages = 4, kSlots = 2, kWriters = 2;

  static constexpr uint32_t kKeyBytes = kBackwardKeys * 128;
  static constexpr uint32_t kQueryBytes = kBackwardQueries * 128;
  static constexpr uint32_t kStageBytes = 2 * kQueryBytes;  // queries, then gradients of outputs
  static constexpr uint32_t kStatisticBytes = 2 * kBackwardQueries * sizeof(float);
  static constexpr uint32_t kSlotBytes = kBackwardKeys * 128;  // gradients of logits
  static constexpr uint32_t kSumBytes = kBackwardQueries * kBackwardWidth * sizeof(float);

  static constexpr uint32_t kKeys = 0, kValues = kKeyBytes, kStage = 2 * kKeyBytes;
  static constexpr uint32_t kSlot = kStage + kStages * kStageBytes;
  static constexpr uint32_t kSum = kSlot + kSlots * kSlotBytes;
  static constexpr uint32_t kPartial = kSum + kWriters * kSumBytes;
  static constexpr uint32_t kStatistics = kPartial + kWriters * kSumBytes;
  static constexpr uint32_t kBarriers = kStatistics + kStages * kStatisticBytes;

  struct Barriers {
    BulkRing<1> item;
    BulkRing<kStages> stage;
    BulkRing<kSlots> slot;
    BulkRing<kWriters> sum;
    uint64_t partial[kWriters];
    int item_number;  // −1 after the last one
  };
  static constexpr uint32_t kAlignment = 1024;
  static constexpr size_t kSharedBytes = kAlignment + kBarriers + sizeof(Barriers);

  const WarpgroupBackwardArguments& a;
  uint32_t start;  // of the tiles in the block's shared memory

  __device__ explicit BackwardBlock(const WarpgroupBackwardArguments& arguments)
      : a(arguments),
        start((kAlignment - shared_address(shared_memory()) % kAlignment) % kAlignment) {}

  // As tiles are named, and as products name them.
  __device__ __forceinline__ uint32_t tile(uint32_t offset) const { return start + offset; }
  __device__ __forceinline__ uint32_t address(uint32_t offset) const {
    return shared_address(shared_memory()) + start + offset;
  }
  template <class T>
  __device__ __forceinline__ T* at(uint32_t offset) const {
    return reinterpret_cast<T*>(shared_memory() + start + offset);
  }
  __device__ __forceinline__ Barriers& barriers() const { return *at<Barriers>(kBarriers); }

  // Where things of a step are. All roles count the steps of the block from 0, over all its items.
  static __device__ __forceinline__ uint32_t queries_of(uint32_t step) {
    return kStage + step % kStages * kStageBytes;
  }
  static __device__ __forceinline__ uint32_t statistics_of(uint32_t step) {
    return kStatistics + step % kStages * kStatisticBytes;
  }
  static __device__ __forceinline__ uint32_t slot_of(uint32_t step) {
    return kSlot + step % kSlots * kSlotBytes;
  }
  static __device__ __forceinline__ uint32_t sums_of(uint32_t step) {
    return kSum + step % kWriters * kSumBytes;
  }

  // By one thread.
  __device__ void init() const {
    Barriers& b = barriers();
    b.item.init(1, kKeyWarps + kQueryWarps + kWriters);
    b.stage.init(1, kKeyWarps);
    b.slot.init(kKeyWarps, kQueryWarps);
    b.sum.init(kQueryWarps, 1);
    for (uint64_t& partial : b.partial) init_barrier(&partial, 1);
    show_barriers_to_copies();
  }

  // Calls body(item, release) for every item of the block; release() says that this warp has read
  // the keys and values for the last time.
  template <class Body>
  __device__ __forceinline__ void each_item(const Body& body) const {
    Barriers& b = barriers();
    for (uint32_t turn = 0;; ++turn) {
      b.item.wait_until_full(turn);
      const int item = b.item_number;
      if (item < 0) return;
      body(item_at(a, item), [&] { arrive_as_warp(b.item.free_at(0)); });
    }
  }
};

}  // namespace dofla::cuda
