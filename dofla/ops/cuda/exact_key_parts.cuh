// What the gradients of attention to exact keys share, and how the parts of a key's gradients from
// the segments that see it add up.
#pragma once

#include "dofla/ops/cuda/exact_segments.cuh"

namespace dofla::cuda {

struct ExactBackwardArguments {
  HeadRows q, k, v, g;
  HeadRowsOut grad_q, grad_k, grad_v;
  const float* log_sum;   // [B, H, T]
  const float* e;         // [B, H, T]
  void *part_k, *part_v;  // [B, rows, part_width]: of every key that a segment sees
  int32_t* next;          // [B, rows]: the key's position in the segment after, −1 if it has left
  float* sums_q;          // [B, H, T, part_width], where keys take more than one tile
  Segments segments;
  int64_t rows;                      // of all heads
  int32_t first_row[kMostKeyHeads];  // of every head
  int key_heads, group, tokens, width, part_width;
  float scale;
  bool packed, packed_q, packed_keys;

  // Where the part of segment n begins. Until the cache is full every segment sees kTokensTogether
  // keys more than the one before.
  __device__ int64_t part_row(int b, int key_head, int n) const {
    const KeyCache& own = segments.cache[key_head];
    const int until_full = segments_until_full(own, tokens), round = n - until_full;
    const int64_t head = b * rows + first_row[key_head];
    if (round < 0) return head + kTokensTogether / 2 * n * (n + 1);
    return head + rows_until_full(own, tokens) +
           int64_t{round} * (own.limit - segments.block + kTokensTogether);
  }
  __host__ __device__ static int rows_until_full(const KeyCache& own, int tokens) {
    const int until_full = segments_until_full(own, tokens);
    const int keys = own.limit < tokens ? own.limit : tokens;
    return kTokensTogether / 2 * until_full * (until_full - 1) + keys;
  }
};

constexpr int kSumThreads = 256;

template <class T>
__device__ __forceinline__ void add_pack(const void* from, int64_t at, Pack<T>& sum) {
  const Pack<T> more = load_pack(static_cast<const T*>(from) + at);
#pragma unroll
  for (int i = 0; i < Pack<T>::kSize; ++i) sum.values[i] += more.values[i];
}

template <class T>
__device__ __forceinline__ void write_pack(const Pack<T>& sum, int column, int width, bool packed,
                                           T* row) {
  if (packed) {
    store_pack(sum, row + column);
  } else {
#pragma unroll
    for (int i = 0; i < Pack<T>::kSize; ++i)
      if (column + i < width) row[column + i] = from_float<T>(sum.values[i]);
  }
}

// Adds up the parts of a key, which some threads, with 16 bytes each, follow from segment to
// segment: where it goes on comes with the part, so that a step waits for memory only once.
template <class T, int kWidth>
__global__ void __launch_bounds__(kSumThreads)
    sum_key_parts(const __grid_constant__ ExactBackwardArguments a) {
  constexpr int kPack = Pack<T>::kSize, kEach = kWidth / kPack;
  const int thread = blockIdx.x * kSumThreads + threadIdx.x;
  const int key = thread / kEach, column = thread % kEach * kPack;
  if (key >= a.tokens || column >= a.width) return;
  const int b = blockIdx.y / a.key_heads, head = blockIdx.y % a.key_heads;
  const KeyCache& cache = a.segments.cache[head];
  const int since_full = key - cache.limit;
  int n = since_full < 0 ? key / kTokensTogether
                         : segments_until_full(cache, a.tokens) + since_full / kTokensTogether;
  int position =
      since_full < 0 ? key : cache.limit - a.segments.block + since_full % kTokensTogether;
  Pack<T> sum_k = {}, sum_v = {};
  while (position >= 0) {
    const int64_t row = a.part_row(b, head, n++) + position;
    position = a.next[row];
    add_pack<T>(a.part_k, row * a.part_width + column, sum_k);
    add_pack<T>(a.part_v, row * a.part_width + column, sum_v);
  }
  write_pack(sum_k, column, a.width, a.packed_keys,
             head_of<T>(a.grad_k, b, head) + key * a.grad_k.token_step);
  write_pack(sum_v, column, a.width, a.packed_keys,
             head_of<T>(a.grad_v, b, head) + key * a.grad_v.token_step);
}

}  // namespace dofla::cuda
