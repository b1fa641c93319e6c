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
