// Rows of float32 that blocks exchange while all of them run. The last bit of every number is a tag
// that says whether it belongs to this token or to the one before: a reader polls the number until
// its tag is right, and has the value with the same load. A row is written once a token. There are
// several copies of it, so that not all blocks poll the same memory.
#pragma once

#include <cstdint>

#include "dofla/ops/cuda/stage_list.h"

namespace dofla::cuda {

// Alternates between 0 and 1 from token to token.
using Tag = uint32_t;

__device__ __forceinline__ bool is_tagged(uint32_t word, Tag tag) {
  return ((word ^ tag) & 1) == 0;
}
__device__ __forceinline__ bool is_tagged(uint4 words, Tag tag) {
  return is_tagged(words.x, tag) && is_tagged(words.y, tag) && is_tagged(words.z, tag) &&
         is_tagged(words.w, tag);
}

__device__ __forceinline__ uint4 load_four_relaxed(const float* row) {
  uint4 words;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "l"(row)
               : "memory");
  return words;
}

// The number without the tag: the same from one token to another.
__device__ __forceinline__ float untagged(uint32_t word) {
  return __uint_as_float(word & ~1u);
}
__device__ __forceinline__ float4 untagged(uint4 words) {
  return make_float4(untagged(words.x), untagged(words.y), untagged(words.z), untagged(words.w));
}

__device__ __forceinline__ float wait_for_tagged(const float* at, Tag tag) {
  uint32_t word;
  do {
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(at) : "memory");
  } while (!is_tagged(word, tag));
  return untagged(word);
}

// The offset of the copy that this block reads, of a row of so many numbers.
__device__ __forceinline__ int own_copy(int count) {
  return static_cast<int>(blockIdx.x % kRowCopies) * count;
}

// Writes number i of a row of `count` to all copies.
__device__ __forceinline__ void publish(float* row, int count, int i, float x, Tag tag) {
  const uint32_t word = (__float_as_uint(x) & ~1u) | tag;
#pragma unroll
  for (int c = 0; c < kRowCopies; ++c)
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(row + c * count + i), "r"(word)
                 : "memory");
}

}  // namespace dofla::cuda
