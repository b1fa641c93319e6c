// What the memory-bound kernels share: 16-byte packs of elements as floats, and sums over a warp.
#pragma once

#include <cuda_bf16.h>

#include "dofla/ops/cuda/element.h"

namespace dofla::cuda {

// As many elements as fit 16 bytes, so that each access moves as much as the hardware can.
template <class T>
struct Pack {
  static constexpr int kSize = 16 / sizeof(T);
  float values[kSize];
};

__device__ inline Pack<float> load_pack(const float* from) {
  const float4 raw = *reinterpret_cast<const float4*>(from);
  return {{raw.x, raw.y, raw.z, raw.w}};
}

__device__ inline Pack<__nv_bfloat16> load_pack(const __nv_bfloat16* from) {
  const uint4 raw = *reinterpret_cast<const uint4*>(from);
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
  Pack<__nv_bfloat16> pack;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    pack.values[2 * i] = __uint_as_float(words[i] << 16);
    pack.values[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  }
  return pack;
}

__device__ inline void store_pack(const Pack<float>& pack, float* to) {
  *reinterpret_cast<float4*>(to) =
      make_float4(pack.values[0], pack.values[1], pack.values[2], pack.values[3]);
}

__device__ inline void store_pack(const Pack<__nv_bfloat16>& pack, __nv_bfloat16* to) {
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(pack.values[2 * i], pack.values[2 * i + 1]);
    words[i] = *reinterpret_cast<const uint32_t*>(&pair);
  }
  *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
}

__device__ inline float to_float(float x) {
  return x;
}
__device__ inline float to_float(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
template <class T>
__device__ inline T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
  return x;
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

// What stands at an address, in whole packs or a single element.
template <int kCount, class T>
__device__ void load_some(const T* from, float (&x)[kCount]) {
  if constexpr (kCount == 1) {
    x[0] = to_float(*from);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; i += Pack<T>::kSize) {
      const Pack<T> pack = load_pack(from + i);
#pragma unroll
      for (int j = 0; j < Pack<T>::kSize; ++j) x[i + j] = pack.values[j];
    }
  }
}
template <int kCount, class T>
__device__ void store_some(const float (&x)[kCount], T* to) {
  if constexpr (kCount == 1) {
    *to = from_float<T>(x[0]);
  } else {
    static_assert(kCount == Pack<T>::kSize);
    Pack<T> pack;
#pragma unroll
    for (int j = 0; j < kCount; ++j) pack.values[j] = x[j];
    store_pack(pack, to);
  }
}

__device__ __forceinline__ float dot(float4 x, float4 y) {
  return fmaf(x.x, y.x, fmaf(x.y, y.y, fmaf(x.z, y.z, x.w * y.w)));
}

constexpr unsigned kWholeWarp = 0xffffffffu;

__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(kWholeWarp, x, step);
  return x;
}

__device__ inline float warp_max(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(kWholeWarp, x, step));
  return x;
}

// Calls kernel-launching code with the C++ type of an Element.
template <class F>
cudaError_t with_type(Element element, const F& launch) {
  if (element == Element::kF32)
    launch(float{});
  else
    launch(__nv_bfloat16{});
  return cudaGetLastError();
}

inline bool aligned_to_packs(const void* a, const void* b = nullptr, const void* c = nullptr) {
  return ((reinterpret_cast<uintptr_t>(a) | reinterpret_cast<uintptr_t>(b) |
           reinterpret_cast<uintptr_t>(c)) &
          15) == 0;
}

inline unsigned blocks_for(int64_t work, int64_t block) {
  return static_cast<unsigned>((work + block - 1) / block);
}

}  // namespace dofla::cuda
