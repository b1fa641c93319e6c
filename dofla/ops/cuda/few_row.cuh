// What the two kernels for products of a few rows share: the rows in shared memory, normalised on
// the way there, and what happens to a sum on its way to memory.
#pragma once

#include "dofla/ops/cuda/few_row_kernels.h"
#include "dofla/ops/cuda/nonlinearity.cuh"
#include "dofla/ops/cuda/overlap.cuh"
#include "dofla/ops/cuda/vector.cuh"

namespace dofla::cuda {

// Inputs are taken in chunks of so many, and rows are filled up with zeros to whole chunks.
constexpr int kChunk = 256;
constexpr int kPack = Pack<__nv_bfloat16>::kSize;

inline int padded_inputs(int64_t inputs) {
  return static_cast<int>((inputs + kChunk - 1) / kChunk) * kChunk;
}

__device__ __forceinline__ Pack<__nv_bfloat16> unpack(uint4 raw) {
  return load_pack(reinterpret_cast<const __nv_bfloat16*>(&raw));
}

// Eight weights that lie side by side, zeros outside. They are read once and take no room in the
// first cache. Volatile, or the compiler may put off to after a wait what is asked for before it;
// without a branch, so that many are on their way at once.
__device__ __forceinline__ uint4 load_weights(const __nv_bfloat16* from, bool inside) {
  uint4 raw = {};
  asm volatile(
      "{\n"
      ".reg .pred inside;\n"
      "setp.ne.b32 inside, %5, 0;\n"
      "@inside ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];\n"
      "}"
      : "+r"(raw.x), "+r"(raw.y), "+r"(raw.z), "+r"(raw.w)
      : "l"(from), "r"(static_cast<int>(inside)));
  return raw;
}

// Sums of a number of every thread for every row; all threads get them. room: [warps, kRows].
template <int kRows, int kThreads>
__device__ __forceinline__ void sum_over_block(float (&values)[kRows], float* room) {
  constexpr int kWarps = kThreads / 32;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    values[r] = warp_sum(values[r]);
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32 * kRows + r] = values[r];
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    values[r] = 0;
    for (int w = 0; w < kWarps; ++w) values[r] += room[w * kRows + r];
  }
}

// The rows of x in shared memory as float32. Place says where four numbers stand within a row:
// at(k), k a multiple of 4. Each thread keeps to its own packs of every row until the last barrier.
template <int kRows, int kThreads, class Place>
struct StagedRows {
  static constexpr int kRoom = 2 * kThreads / 32 * kRows;  // for sums

  const FewRowProduct& p;
  int padded;
  float *x, *norm_weight, *norm_bias, *room;  // [kRows, padded], [padded] twice, [kRoom]

  static size_t floats(int padded_width, bool with_norm) {
    return static_cast<size_t>(padded_width) * (kRows + (with_norm ? 2 : 0)) + kRoom;
  }

  __device__ StagedRows(const FewRowProduct& product, float* memory)
      : p(product), padded((static_cast<int>(product.inputs) + kChunk - 1) / kChunk * kChunk) {
    x = memory + kRoom;
    room = memory;
    norm_weight = x + kRows * padded;
    norm_bias = norm_weight + padded;
  }

  template <class Body>
  __device__ __forceinline__ void each_own_pack(const Body& body) const {
    for (int k = threadIdx.x * kPack; k < padded; k += kThreads * kPack) body(k);
  }
  // Calls body(place, k + i) for the eight numbers from k on.
  template <class Body>
  __device__ __forceinline__ static void each_in_pack(int k, const Body& body) {
#pragma unroll
    for (int i = 0; i < kPack; ++i) body(Place::at(k + i / 4 * 4) + i % 4, k + i);
  }

  // Before x is there.
  __device__ void load_norm() const {
    if (p.norm.weight == nullptr) return;
    each_own_pack([&](int k0) {
      each_in_pack(k0, [&](int at, int k) {
        const bool inside = k < p.inputs;
        norm_weight[at] = inside ? p.norm.weight[k] : 0;
        norm_bias[at] = inside && p.norm.bias != nullptr ? p.norm.bias[k] : 0;
      });
    });
  }

  __device__ void load() const {
    float sums[kRows] = {};
    each_own_pack([&](int k0) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const auto* row = static_cast<const __nv_bfloat16*>(p.x) + r * p.inputs;
        // Past the first cache, where an earlier content of this memory may be left.
        const bool inside = r < p.rows && k0 < p.inputs;
        const auto pack =
            unpack(inside ? __ldcg(reinterpret_cast<const uint4*>(row + k0)) : uint4{});
        each_in_pack(k0, [&](int at, int k) { x[r * padded + at] = pack.values[k - k0]; });
#pragma unroll
        for (int i = 0; i < kPack; ++i) sums[r] += pack.values[i];
      }
    });
    if (p.norm.weight != nullptr) normalise(sums);
    __syncthreads();
  }

 private:
  __device__ void normalise(float (&mean)[kRows]) const {
    const float one_over_width = 1.0f / static_cast<float>(p.inputs);
    sum_over_block<kRows, kThreads>(mean, room);
#pragma unroll
    for (int r = 0; r < kRows; ++r) mean[r] = p.norm.centre ? mean[r] * one_over_width : 0;
    float scale[kRows] = {};
    each_own_pack([&](int k0) {
      each_in_pack(k0, [&](int at, int k) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const float off = k < p.inputs ? x[r * padded + at] - mean[r] : 0;
          scale[r] = fmaf(off, off, scale[r]);
        }
      });
    });
    sum_over_block<kRows, kThreads>(scale, room + kRoom / 2);
#pragma unroll
    for (int r = 0; r < kRows; ++r) scale[r] = rsqrtf(scale[r] * one_over_width + p.norm.epsilon);
    each_own_pack([&](int k0) {
      each_in_pack(k0, [&](int at, int) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          float& value = x[r * padded + at];
          value = fmaf((value - mean[r]) * scale[r], norm_weight[at], norm_bias[at]);
        }
      });
    });
  }
};

// From a sum to an element of y. What it needs besides is asked for early: one latency less.
struct Ending {
  float bias, factor, residual;

  __device__ __forceinline__ Ending(const FewRowProduct& p, int64_t r, int64_t n)
      : bias(0), factor(1), residual(0) {
    if (r >= p.rows || n >= p.outputs) return;
    const auto at = [](const void* values, int64_t i) {
      return to_float(static_cast<const __nv_bfloat16*>(values)[i]);
    };
    if (p.bias != nullptr) bias = at(p.bias, n);
    if (p.factor != nullptr) factor = at(p.factor, r * p.outputs + n);
    for (const void* values : p.residuals)
      if (values != nullptr) residual += at(values, r * p.outputs + n);
  }

  __device__ __forceinline__ void store(const FewRowProduct& p, int64_t r, int64_t n,
                                        float sum) const {
    if (r >= p.rows || n >= p.outputs) return;
    sum += bias;
    if (p.nonlinear) sum = apply(p.f, sum);
    sum = fmaf(sum, factor, residual);
    const int64_t i = r * p.outputs + n;
    if (p.y_element == Element::kF32)
      static_cast<float*>(p.y)[i] = sum;
    else
      static_cast<__nv_bfloat16*>(p.y)[i] = from_float<__nv_bfloat16>(sum);
  }
};

// Sums every value over the lanes that differ in the bits from kLast to kFirst, halving what a lane
// has to care for at every step. Afterwards the first max(1, kCount / 2^steps) values of a lane are
// the sums of those from the returned index on.
template <int kFirst, int kLast, int kCount>
__device__ __forceinline__ int scatter_sums(float (&values)[kCount]) {
  int index = 0, count = kCount;
#pragma unroll
  for (int step = kFirst; step >= kLast; step /= 2) {
    if (count == 1) {
      values[0] += __shfl_xor_sync(kWholeWarp, values[0], step);
      continue;
    }
    count /= 2;
    const bool upper = (threadIdx.x & step) != 0;
    if (upper) index += count;
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      if (i >= count) continue;
      const float mine = upper ? values[i + count] : values[i];
      const float other = upper ? values[i] : values[i + count];
      values[i] = mine + __shfl_xor_sync(kWholeWarp, other, step);
    }
  }
  return index;
}

// How many values scatter_sums leaves a lane with.
template <int kSteps, int kCount>
constexpr int kLeftOver = kCount >> kSteps > 1 ? kCount >> kSteps : 1;

}  // namespace dofla::cuda
