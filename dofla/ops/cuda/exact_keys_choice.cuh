// How one block chooses which keys of one key head of one sequence leave, segment after segment:
// tokens come until the cache is full, `block` keys leave, `block` tokens come, and so on. Keys lie
// in slots of shared memory and do not move. One warp chooses; the others, the tile warps, compute
// what keys receive from the queries of the next turn meanwhile, as if none left
// (docs/kernels.md, "Exact keys").
#pragma once

#include "dofla/ops/cuda/exact_keys_weights.cuh"
#include "dofla/ops/cuda/exact_segments.cuh"

namespace dofla::cuda {

// A barrier of so many threads. Every part of a block comes to it at a place of its own.
__device__ __forceinline__ void meet(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

template <class T, int kWidth, int kHeads>
struct Chooser {
  static constexpr int kStride = kWidth + 8, kColumns = kTokens * kHeads;
  using Rows = Tile<T, kStride>;

  const EvictArguments& a;
  const KeyCache& cache;
  const EvictLists& s;
  const Rows slots;
  const Candidates candidates;
  const int keys;  // N

  // The keys from `first` to `end` go to the slots that `list` names.
  __device__ void load_keys(int first, int end, const int* list) const {
    const T* rows = head_of<T>(a.k, blockIdx.y, blockIdx.x);
    load_named_rows<T, kWidth>(
        end - first, a.width, a.packed_k, a.k.data,
        [&](int row) { return rows + (first + row) * a.k.token_step; },
        [&](int row) { return slots.at(list[row], 0); });
  }

  __device__ void load_queries(const Turn& turn, const Rows& to) const {
    load_named_rows<T, kWidth>(
        kColumns, a.width, a.packed_q, a.q.data,
        [&](int row) {
          const int token = turn.first - cache.before + row % kTokens;
          const int own = turn.head + row / kTokens;
          return token < a.tokens && own < a.group
                     ? head_of<T>(a.q, blockIdx.y, blockIdx.x * a.group + own) +
                           token * a.q.token_step
                     : static_cast<const T*>(nullptr);
        },
        [&](int row) { return to.at(row, 0); });
  }

  // A thread's part of what the turn `after` the one that comes needs: its queries; and the segment
  // that takes the slots which have become free in `past`, the turn before the one that comes.
  __device__ void load_ahead(const Turn& past, const Turn& after, const Rows& to) const {
    if (after.first < keys) load_queries(after, to);
    if (past.evicts) {
      const int first = cache.limit + (past.times + 1) * a.block;
      load_keys(first, min(keys, first + a.block), s.spare_at(past.times + 1));
    }
    commit_copies();
  }

  // Of a full cache the `block` smallest scores leave.
  __device__ __forceinline__ void choose() const {
    for (int i = threadIdx.x % 32; i < a.most_slots / kSlotPair; i += 32) s.left[i] = s.gone[i] = 0;
    __syncwarp();
    take_least(
        candidates, a.block, [&](int p) { return s.by_age[p]; },
        [&](int slot) { return s.score[slot]; },
        [&](int p, int slot) {
          atomicOr(s.left + slot / kSlotPair, 1u << slot % kSlotPair);
          atomicOr(s.gone + p / kSlotPair, 1u << p % kSlotPair);
        });
    __syncwarp();
  }

  // Those that left for the n-th time are written down; those that stay move together in the list,
  // and the next segment joins it. The list is its own target: places only become smaller, and the
  // next 32 are read before these are written.
  __device__ __forceinline__ void list(int n) const {
    const int lane = threadIdx.x % 32, stay = cache.limit - a.block;
    const int64_t head = int64_t{blockIdx.y} * gridDim.x + blockIdx.x;
    int32_t* const order = a.to.order + head * a.order_row + int64_t{n} * a.block;
    int32_t* const leaves = a.to.leaves + head * a.key_rows;
    const bool listed = (n & ((1 << a.together_shift) - 1)) == 0;
    int32_t* const kept = a.to.kept + blockIdx.y * a.kept_row + cache.first_kept +
                          int64_t{n >> a.together_shift} * stay;
    const int coming = cache.limit + (n + 2) * a.block;
    int before = 0, next = lane < cache.limit ? s.by_age[lane] : 0;
    for (int first = 0; first < cache.limit; first += 32) {
      const int p = first + lane, slot = next;
      const uint32_t gone = s.gone[first / 32];
      next = p + 32 < cache.limit ? s.by_age[p + 32] : 0;
      __syncwarp();
      const int smaller = before + __popc(gone & ((1u << lane) - 1));
      before += __popc(gone);
      if (p >= cache.limit) break;
      if (gone >> lane & 1) {
        const int key = s.index[slot];
        order[smaller] = key;
        leaves[key] = n;
        s.spare_at(n + 2)[smaller] = slot;
        s.index[slot] = coming + smaller < keys ? coming + smaller : kNoKey;
      } else {
        s.by_age[p - smaller] = slot;
        if (listed) kept[p - smaller] = s.index[slot];
      }
    }
    __syncwarp();
    for (int i = lane; i < a.block; i += 32) s.by_age[stay + i] = s.spare_at(n)[i];
  }
};

}  // namespace dofla::cuda
