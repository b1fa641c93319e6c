// The queries of one token against rows of keys and values, on tensor cores. Up to eight query
// heads that share a key head attend at once. Numbers that are more precise than bf16 are sums of
// bf16 parts (fragment.cuh). With g = lane / 4 and c = lane % 4, a lane loads keys by themselves
// and eight adjacent coordinates of each: in which order these enter a sum is free.
#pragma once

#include "dofla/ops/cuda/fragment.cuh"

namespace dofla::cuda {

constexpr int kQueriesTogether = 8;

// Queries as the left operand of a product has them.
template <int kPartCount, int kWidth>
struct QueryParts {
  static constexpr int kStride = kWidth + 8;  // adjacent rows begin in different banks
  __align__(16) __nv_bfloat16 part[kPartCount][kQueriesTogether][kStride];

  // Four coordinates of a query.
  __device__ __forceinline__ void put(int query, int d, float4 x) {
    Fragment<kPartCount> words;
    split(make_float2(x.x, x.y), 0, words);
    split(make_float2(x.z, x.w), 1, words);
#pragma unroll
    for (int i = 0; i < kPartCount; ++i)
      *reinterpret_cast<uint2*>(&part[i][query][d]) =
          make_uint2(words.part[i][0], words.part[i][1]);
  }
};

// Keys, or values, of adjacent places: their rows lie in shared memory, but for the newest, which
// has the last place.
template <class T>
struct KeyRows {
  const T* rows;  // that of place `first`
  const T* newest;
  int first, last;
  int stride;
  int width;  // whole packs of eight: what lies between is zeros

  __device__ __forceinline__ const T* at(int place) const {
    return place == last ? newest : rows + (place - first) * stride;
  }
};

// Eight coordinates as bf16 parts, two in a word.
template <class T>
struct EightParts {
  uint4 part[kParts<T>] = {};
};

__device__ __forceinline__ EightParts<__nv_bfloat16> load_eight(const __nv_bfloat16* from) {
  return {{*reinterpret_cast<const uint4*>(from)}};
}
__device__ __forceinline__ EightParts<float> load_eight(const float* from) {
  const float4 low = *reinterpret_cast<const float4*>(from);
  const float4 high = *reinterpret_cast<const float4*>(from + 4);
  Fragment<kParts<float>> words;
  split(make_float2(low.x, low.y), 0, words);
  split(make_float2(low.z, low.w), 1, words);
  split(make_float2(high.x, high.y), 2, words);
  split(make_float2(high.z, high.w), 3, words);
  EightParts<float> eight;
#pragma unroll
  for (int i = 0; i < kParts<float>; ++i)
    eight.part[i] =
        make_uint4(words.part[i][0], words.part[i][1], words.part[i][2], words.part[i][3]);
  return eight;
}

// The products of the queries with eight keys from `place` on: a lane has those of query g with
// keys 2c and 2c + 1. Nothing is said about keys that do not exist.
template <int kQueryPartCount, int kWidth, class T>
__device__ __forceinline__ float2 multiply_keys(const QueryParts<kQueryPartCount, kWidth>& queries,
                                                const KeyRows<T>& keys, int place) {
  constexpr int kMost = kMostParts<kQueryPartCount, kParts<T>>;
  const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
  const bool inside = place + g <= keys.last;
  const T* row = keys.at(min(place + g, keys.last));
  float sums[2][4] = {};  // two chains of products
#pragma unroll
  for (int window = 0; window < kWidth; window += 32) {
    const int d = window + 8 * c;
    EightParts<T> b;
    if (inside && d < keys.width) b = load_eight(row + d);
#pragma unroll
    for (int i = kQueryPartCount - 1; i >= 0; --i) {
      // Only half of the operand's rows are queries.
      const uint4 a = *reinterpret_cast<const uint4*>(&queries.part[i][g][d]);
#pragma unroll
      for (int j = kParts<T> - 1; j >= 0; --j) {
        if (i + j >= kMost) continue;
        mma_bf16(sums[0], {a.x, 0, a.y, 0}, b.part[j].x, b.part[j].y);
        mma_bf16(sums[1], {a.z, 0, a.w, 0}, b.part[j].z, b.part[j].w);
      }
    }
  }
  return make_float2(sums[0][0] + sums[1][0], sums[0][1] + sums[1][1]);
}

// Two coordinates of a value, zeros where there is none.
template <class T>
__device__ __forceinline__ float2 load_two(const KeyRows<T>& values, int place, int d) {
  if (place > values.last || d >= values.width) return {};
  return reinterpret_cast<const Pair<T>*>(values.at(place) + d)->floats();
}

// Adds the values of sixteen places from `place` on, with weights [heads, stride] that begin at the
// same place and are zeros beyond the last: a lane has coordinates d and d + 1, d = first + 2g, for
// query 2c in sums 0 and 2, for query 2c + 1 in sums 1 and 3. Weights of queries that do not exist
// are not read.
template <class T>
__device__ __forceinline__ void add_values(const KeyRows<T>& values, int place, int first,
                                           const float* weights, int stride, int queries,
                                           float (&sums)[4]) {
  constexpr int kWeightParts = kWideParts<T>, kMost = kMostParts<kParts<T>, kWeightParts>;
  const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4, d = first + 2 * g;
  Fragment<kWeightParts> b;
  Fragment<kParts<T>> a;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int key = place + 2 * c + 8 * half;
    float2 weight = {};
    if (g < queries)
      weight = *reinterpret_cast<const float2*>(weights + g * stride + 2 * c + 8 * half);
    split(weight, half, b);
    const float2 even = load_two(values, key, d), odd = load_two(values, key + 1, d);
    split(make_float2(even.x, odd.x), 2 * half, a);
    split(make_float2(even.y, odd.y), 2 * half + 1, a);
  }
#pragma unroll
  for (int i = kParts<T> - 1; i >= 0; --i) {
#pragma unroll
    for (int j = kWeightParts - 1; j >= 0; --j)
      if (i + j < kMost) mma_bf16(sums, a.part[i], b.part[j][0], b.part[j][1]);
  }
}

}  // namespace dofla::cuda
