// Which keys of a full cache leave: the `block` smallest scores of those that are neither sinks nor
// among the newest; of equal scores the older first. Keys are counted from the oldest.
#pragma once

#include "dofla/ops/cuda/vector.cuh"

namespace dofla::cuda {

__host__ __device__ inline int in_fours(int x) {
  return (x + 3) / 4 * 4;
}

// A score as an integer, in the order of positive floats; the largest for a key that may not leave.
__device__ __forceinline__ uint32_t rate(float score, int p, int limit, int sinks, int recent) {
  return p >= sinks && p < limit - recent ? __float_as_uint(score) : 0xffffffffu;
}

// By all threads of a block: leaves[p] for the keys p < limit; `rated` is filled up with the
// largest to a multiple of four. Exactly `block` leave, whatever the scores.
__device__ __forceinline__ void mark_least(const uint32_t* rated, int limit, int block,
                                           int* leaves) {
  for (int p = threadIdx.x; p < limit; p += blockDim.x) {
    const uint32_t own = rated[p];
    int smaller = 0;
    for (int j = 0; j < limit; j += 4) {
      const uint4 four = *reinterpret_cast<const uint4*>(rated + j);
      smaller += four.x < own || (four.x == own && j < p);
      smaller += four.y < own || (four.y == own && j + 1 < p);
      smaller += four.z < own || (four.z == own && j + 2 < p);
      smaller += four.w < own || (four.w == own && j + 3 < p);
    }
    leaves[p] = smaller < block;
  }
}

// By one warp: calls leave(i, x) for the i-th that leaves and stay(i, x) for the i-th that stays,
// oldest first, with x = item(p). Items of 32 keys are asked for before any of them is given.
template <class Item, class Leave, class Stay>
__device__ __forceinline__ void part_by_leaving(const int* leaves, int limit, const Item& item,
                                                const Leave& leave, const Stay& stay) {
  const int lane = threadIdx.x % 32;
  const unsigned before = (1u << lane) - 1;
  int leaving = 0, staying = 0;
  for (int start = 0; start < limit; start += 32) {
    const int p = start + lane;
    const bool inside = p < limit, goes = inside && leaves[p] != 0;
    const int x = inside ? item(p) : 0;
    const unsigned out = __ballot_sync(kWholeWarp, goes);
    const unsigned in = __ballot_sync(kWholeWarp, inside && !goes);
    __syncwarp();
    if (goes)
      leave(leaving + __popc(out & before), x);
    else if (inside)
      stay(staying + __popc(in & before), x);
    leaving += __popc(out);
    staying += __popc(in);
    __syncwarp();
  }
}

}  // namespace dofla::cuda
