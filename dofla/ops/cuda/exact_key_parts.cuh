// What the gradients of attention to exact keys share, and how the parts of a key's gradients from
// the segments that see it add up.
#pragma once

#include "dofla/ops/cuda/exact_segments.cuh"

namespace dofla::cuda {

constexpr int kMostBackwardWarps = 4;

struct ExactBackwardArguments {
  HeadRows q, k, v, g;
  HeadRowsOut grad_q, grad_k, grad_v;
  const float* log_sum;   // [B, H, T]
  const float* e;         // [B, H, T]
  void *part_k, *part_v;  // [B, rows, D]
  Segments segments;
  SegmentBlocks blocks;
  int64_t rows;                      // of all heads
  int32_t first_row[kMostKeyHeads];  // of every head
  int key_heads, group, tokens, width;
  float scale;
  bool packed, packed_q;

  // Where the part of segment n begins.
  __device__ int64_t part_row(int b, int key_head, int n) const {
    const int limit = segments.cache[key_head].limit;
    const int64_t own =
        n == 0 ? 0 : limit + (n - 1) * int64_t{limit - segments.block + kTokensTogether};
    return b * rows + first_row[key_head] + own;
  }
};

// Adds up the parts of a key, which a warp follows from segment to segment.
template <class T>
__global__ void __launch_bounds__(32 * kMostBackwardWarps)
    sum_key_parts(const __grid_constant__ ExactBackwardArguments a) {
  constexpr int kEach = kWidestHead / 32;
  const int key = blockIdx.x * kMostBackwardWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (key >= a.tokens) return;
  const int b = blockIdx.y / a.key_heads, head = blockIdx.y % a.key_heads;
  const int limit = a.segments.cache[head].limit, block = a.segments.block, stay = limit - block;
  int n = key < limit ? 0 : 1 + (key - limit) / kTokensTogether;
  int position = key < limit ? key : stay + (key - limit) % kTokensTogether;
  // The last segment that sees it.
  const int leaves = a.segments.at(b, head, 0).leaves[key];
  const int last = leaves == kStays ? a.segments.cache[head].rounds
                   : leaves == 0    ? 0
                                    : 1 + (leaves - 1) * block / kTokensTogether;
  float sum_k[kEach] = {}, sum_v[kEach] = {};
  while (true) {
    const int64_t at = (a.part_row(b, head, n) + position) * a.width;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int d = lane + 32 * i;
      if (d >= a.width) continue;
      sum_k[i] += to_float(static_cast<const T*>(a.part_k)[at + d]);
      sum_v[i] += to_float(static_cast<const T*>(a.part_v)[at + d]);
    }
    if (n++ >= last) break;
    // Up to kTokensTogether keys before it have left: it is that much further ahead.
    const int32_t* kept = a.segments.at(b, head, n).kept;
    int found = -1;
    for (int back = 0; back <= kTokensTogether && found < 0; back += 32) {
      const int candidate = position - back - lane;
      const bool here = candidate >= 0 && candidate < stay && kept[candidate] == key;
      const unsigned lanes = __ballot_sync(kWholeWarp, here);
      if (lanes != 0) found = position - back - (__ffs(static_cast<int>(lanes)) - 1);
    }
    position = found;
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int d = lane + 32 * i;
    if (d >= a.width) continue;
    head_of<T>(a.grad_k, b, head)[key * a.grad_k.token_step + d] = from_float<T>(sum_k[i]);
    head_of<T>(a.grad_v, b, head)[key * a.grad_v.token_step + d] = from_float<T>(sum_v[i]);
  }
}

}  // namespace dofla::cuda
