// Which keys of a full cache leave: the `block` smallest scores of those that are neither sinks nor
// among the newest; of equal scores the older first. Keys are counted from the oldest.
#pragma once

#include <climits>

#include "dofla/ops/cuda/vector.cuh"

namespace dofla::cuda {

__host__ __device__ inline int in_fours(int x) {
  return (x + 3) / 4 * 4;
}

// Keys that may leave.
struct Candidates {
  int first, end;
};
__device__ __forceinline__ Candidates candidates_of(int limit, int sinks, int recent) {
  return {sinks, limit - (recent > 0 ? recent : limit / 2)};
}

// A score as an integer, in the order of positive floats; the largest for a key that may not leave.
__device__ __forceinline__ uint32_t rate(float score, int p, const Candidates& all) {
  return p >= all.first && p < all.end ? __float_as_uint(score) : 0xffffffffu;
}

// By so many threads of a block: the places of those that leave, in any order. `rated` is filled up
// with the largest to a multiple of four, and so is `leaving`. Exactly `block` leave, whatever the
// scores.
__device__ __forceinline__ void find_least(const uint32_t* rated, const Candidates& all, int block,
                                           int* leaving, int threads) {
  for (int p = all.first + threadIdx.x; p < all.end; p += threads) {
    const uint32_t own = rated[p];
    int smaller = 0;
#pragma unroll 4
    for (int j = all.first / 4 * 4; j < all.end; j += 4) {
      const uint4 four = *reinterpret_cast<const uint4*>(rated + j);
      smaller += four.x < own || (four.x == own && j < p);
      smaller += four.y < own || (four.y == own && j + 1 < p);
      smaller += four.z < own || (four.z == own && j + 2 < p);
      smaller += four.w < own || (four.w == own && j + 3 < p);
    }
    if (smaller < block) leaving[smaller] = p;
  }
}

// The least of what a lane looks through, in order: those that it gives next.
struct LaneLeast {
  static constexpr int kCount = 4;
  static constexpr uint32_t kNone = 0xffffffffu;
  uint32_t value[kCount] = {kNone, kNone, kNone, kNone};
  int what[kCount] = {};

  // A key that is younger than all that were added.
  __device__ __forceinline__ void add(uint32_t own, int which) {
    const bool enters = own < value[kCount - 1];
    value[kCount - 1] = enters ? own : value[kCount - 1];
    what[kCount - 1] = enters ? which : what[kCount - 1];
#pragma unroll
    for (int i = kCount - 1; i > 0; --i) {
      const bool less = value[i] < value[i - 1];
      const uint32_t low = less ? value[i] : value[i - 1], high = less ? value[i - 1] : value[i];
      const int of_low = less ? what[i] : what[i - 1], of_high = less ? what[i - 1] : what[i];
      value[i - 1] = low, value[i] = high;
      what[i - 1] = of_low, what[i] = of_high;
    }
  }
  // `what` stays where it is.
  __device__ __forceinline__ void drop_first(bool really) {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      value[i] = !really ? value[i] : i + 1 < kCount ? value[(i + 1) % kCount] : kNone;
  }
};

// The same by one warp, one key after the other: a lane looks through a stretch of the candidates,
// and the least of what the lanes would give next leaves. slot(p) is that at place p, score(slot)
// its score; a lane calls leave(p, slot) for each key that it gives. Places and slots are below
// 2¹⁵.
template <class Slot, class Score, class Leave>
__device__ __forceinline__ void take_least(const Candidates& all, int block, const Slot& slot,
                                           const Score& score, const Leave& leave) {
  constexpr int kCount = LaneLeast::kCount;
  const int lane = threadIdx.x % 32, stretch = (all.end - all.first + 31) / 32;
  const int first = all.first + lane * stretch, end = min(first + stretch, all.end);
  LaneLeast own;
  int given = 0;      // of `own`
  uint32_t last = 0;  // value that the lane has given, of place last_place
  int last_place = -1;
  const auto look = [&] {
    for (int p = first; p < end; p += kCount) {
      int at[kCount];
      uint32_t value[kCount];
#pragma unroll
      for (int i = 0; i < kCount; ++i) at[i] = slot(min(p + i, end - 1));
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        value[i] = min(__float_as_uint(score(at[i])), LaneLeast::kNone - 1);
        const bool before = value[i] < last || (value[i] == last && p + i <= last_place);
        if (before || p + i >= end) value[i] = LaneLeast::kNone;
      }
#pragma unroll
      for (int i = 0; i < kCount; ++i) own.add(value[i], at[i] << 16 | (p + i));
    }
  };
  const auto give = [&] {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      if (i < given) leave(own.what[i] & 0xffff, own.what[i] >> 16);
  };
  look();
  uint32_t least = __reduce_min_sync(kWholeWarp, own.value[0]);
  for (int i = 0; i < block; ++i) {
    bool gives = own.value[0] == least;
    // The next round begins as if no other lane had the same value, before this is known.
    uint32_t next = __reduce_min_sync(kWholeWarp, gives ? own.value[1] : own.value[0]);
    const unsigned lanes = __ballot_sync(kWholeWarp, gives);
    if (__popc(lanes) > 1) {
      gives = lane == __ffs(static_cast<int>(lanes)) - 1;  // the oldest
      next = __reduce_min_sync(kWholeWarp, gives ? own.value[1] : own.value[0]);
    }
    own.drop_first(gives);
    given += gives;
    if (stretch > kCount && __any_sync(kWholeWarp, given == kCount)) {
      if (given == kCount) {  // there may be more
        last = least, last_place = own.what[kCount - 1] & 0xffff;
        give();
        given = 0;
        own = {};
        look();
      }
      __syncwarp();
      next = __reduce_min_sync(kWholeWarp, own.value[0]);
    }
    least = next;
  }
  give();
}

// Fills up a list of those that leave, which then stays so.
__device__ __forceinline__ void begin_leaving(int block, int* leaving, int threads) {
  for (int i = block + threadIdx.x; i < in_fours(block); i += threads) leaving[i] = INT_MAX;
}

// How many leave of the keys before place p, and whether that one does.
struct Leaving {
  int before;
  bool goes;
};
__device__ __forceinline__ Leaving leaving_at(const int* leaving, int block, int p) {
  Leaving at = {};
#pragma unroll 2
  for (int i = 0; i < block; i += 4) {
    const int4 four = *reinterpret_cast<const int4*>(leaving + i);
    at.before += (four.x < p) + (four.y < p) + (four.z < p) + (four.w < p);
    at.goes |= four.x == p || four.y == p || four.z == p || four.w == p;
  }
  return at;
}

}  // namespace dofla::cuda
