// Which keys of a full cache leave: the `block` smallest scores of those that are neither sinks nor
// among the newest; of equal scores the older first. Keys are counted from the oldest.
#pragma once

#include "dofla/ops/cuda/vector.cuh"

namespace dofla::cuda {

// A score as an integer, in the order of positive floats; the largest for a key that may not leave.
__device__ __forceinline__ uint32_t rate(float score, int p, int limit, int sinks, int recent) {
  return p >= sinks && p < limit - recent ? __float_as_uint(score) : 0xffffffffu;
}

// What marks a key that leaves: no score, nor the largest.
constexpr uint32_t kLeaves = 0xfffffffeu;

// By one warp, where lane p % 32 has written rated[p]: the `block` smallest become kLeaves.
__device__ __forceinline__ void mark_least_by_warp(uint32_t* rated, int limit, int block) {
  const int lane = threadIdx.x % 32;
  uint32_t least = 0xffffffffu;  // of the lane's keys, the oldest of equal ones
  int place = limit;
  const auto look = [&] {
    least = 0xffffffffu, place = limit;
    for (int p = lane; p < limit; p += 32) {
      const uint32_t own = rated[p];
      if (own < least && own != kLeaves) least = own, place = p;
    }
  };
  look();
  for (int i = 0; i < block; ++i) {
    const uint32_t smallest = __reduce_min_sync(kWholeWarp, least);
    const int oldest = __reduce_min_sync(kWholeWarp, least == smallest ? place : limit);
    if (place == oldest) {
      rated[place] = kLeaves;
      look();
    }
    __syncwarp();
  }
}

// By one warp: calls leave(i, x) for the i-th that leaves and stay(i, x) for the i-th that stays,
// oldest first, with x = item(p). Items of 32 keys are asked for before any of them is given. Lane
// p % 32 asks whether p leaves.
template <class Leaves, class Item, class Leave, class Stay>
__device__ __forceinline__ void part_by_leaving(int limit, const Leaves& leaves, const Item& item,
                                                const Leave& leave, const Stay& stay) {
  const int lane = threadIdx.x % 32;
  const unsigned before = (1u << lane) - 1;
  int leaving = 0, staying = 0;
  for (int start = 0; start < limit; start += 32) {
    const int p = start + lane;
    const bool inside = p < limit, goes = inside && leaves(p);
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
