// The prologue and the epilogue of a product of a few rows: the rows in shared memory, normalised
// while they are loaded, and what happens to a sum before it is stored.
#pragma once

#include "dofla/ops/cuda/activation.cuh"
#include "dofla/ops/cuda/few_row_kernels.h"
#include "dofla/ops/cuda/overlap.cuh"
#include "dofla/ops/cuda/vector.cuh"

namespace dofla::cuda {

struct FewRowBlock {
  static constexpr int kThreads = 256, kWarps = kThreads / 32;
  static constexpr int kPack = Pack<__nv_bfloat16>::kSize;
  // What a warp reads of a row at a time; rows are padded with zeros to whole chunks.
  static constexpr int kChunk = 32 * kPack;
};

__host__ __device__ inline int chunks_of(int64_t inputs) {
  return static_cast<int>((inputs + FewRowBlock::kChunk - 1) / FewRowBlock::kChunk);
}

__device__ __forceinline__ Pack<__nv_bfloat16> unpack(uint4 raw) {
  return load_pack(reinterpret_cast<const __nv_bfloat16*>(&raw));
}

// A row's chunk in shared memory: first the first four numbers of every lane's pack, then the other
// four, so that a warp reads either without meeting in a bank.
struct LanesSideBySide {
  // Of a pack that begins at input k.
  __device__ static int place(int k) {
    return k / FewRowBlock::kChunk * FewRowBlock::kChunk +
           k % FewRowBlock::kChunk / FewRowBlock::kPack * 4;
  }

  __device__ static Pack<__nv_bfloat16> load(const float* row, int k) {
    const Pack<float> low = load_pack(row + place(k));
    const Pack<float> high = load_pack(row + place(k) + FewRowBlock::kChunk / 2);
    return {{low.values[0], low.values[1], low.values[2], low.values[3], high.values[0],
             high.values[1], high.values[2], high.values[3]}};
  }
  __device__ static void store(const Pack<__nv_bfloat16>& x, float* row, int k) {
    store_pack(Pack<float>{{x.values[0], x.values[1], x.values[2], x.values[3]}}, row + place(k));
    store_pack(Pack<float>{{x.values[4], x.values[5], x.values[6], x.values[7]}},
               row + place(k) + FewRowBlock::kChunk / 2);
  }
};

// The rows of x in shared memory as float32. Each row has its own warps, and until the last barrier
// a thread accesses only its own packs.
template <int kRows>
class StagedRows {
 public:
  static size_t bytes(int64_t inputs, bool with_norm) {
    return sizeof(float4) * FewRowBlock::kWarps +
           sizeof(float) * static_cast<size_t>(chunks_of(inputs)) * FewRowBlock::kChunk *
               (kRows + (with_norm ? 2 : 0));
  }

  __device__ StagedRows(const FewRowProduct& product, float4* memory)
      : p(product), padded(chunks_of(product.inputs) * FewRowBlock::kChunk), moments(memory) {
    x = reinterpret_cast<float*>(memory + FewRowBlock::kWarps);
    norm_weight = x + kRows * padded;
    norm_bias = norm_weight + padded;
  }

  // Can run before x is available.
  __device__ void load_norm() const {
    if (p.norm.weight == nullptr) return;
    for (int k = threadIdx.x; k < padded; k += FewRowBlock::kThreads) {
      const bool inside = k < p.inputs;
      const int at = LanesSideBySide::place(k) +
                     k % FewRowBlock::kPack / 4 * (FewRowBlock::kChunk / 2) + k % 4;
      norm_weight[at] = inside ? p.norm.weight[k] : 0;
      norm_bias[at] = inside && p.norm.bias != nullptr ? p.norm.bias[k] : 0;
    }
    __syncthreads();
  }

  __device__ void load() const {
    constexpr int kTogether = kRows <= 2 ? 2 : 4;  // packs in flight
    const int row = threadIdx.x / kThreadsOfRow;
    const auto* from = static_cast<const __nv_bfloat16*>(p.x) + row * p.inputs;
    float* to = x + row * padded;
    float sum = 0, count = 0;
    for (int start = first_own(); start < padded; start += kTogether * kStep) {
      uint4 raw[kTogether] = {};
#pragma unroll
      for (int i = 0; i < kTogether; ++i)
        // Not through the L1 cache, which may hold an earlier content of this memory.
        if (const int k = start + i * kStep; row < p.rows && k < p.inputs)
          raw[i] = __ldcg(reinterpret_cast<const uint4*>(from + k));
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int k = start + i * kStep;
        if (k >= padded) break;
        const auto pack = unpack(raw[i]);
        LanesSideBySide::store(pack, to, k);
#pragma unroll
        for (int j = 0; j < FewRowBlock::kPack; ++j) sum += pack.values[j];
        if (k < p.inputs) count += FewRowBlock::kPack;
      }
    }
    if (p.norm.weight != nullptr) normalise(to, sum, count);
    __syncthreads();
  }

  __device__ const float* row(int r) const {
    return x + r * padded;
  }

 private:
  static constexpr int kThreadsOfRow = FewRowBlock::kThreads / kRows,
                       kWarpsOfRow = kThreadsOfRow / 32;
  static constexpr int kStep =
      kThreadsOfRow * FewRowBlock::kPack;  // from one pack of a thread to its next
  static_assert(kThreadsOfRow % 32 == 0, "a row has whole warps");

  __device__ static int first_own() {
    return threadIdx.x % kThreadsOfRow * FewRowBlock::kPack;
  }

  // From the sum and the number of a thread's values. Each warp finds the mean of its own and their
  // squares around it, and the row's follow from those of its warps: exact, with one barrier.
  __device__ void normalise(float* row, float sum, float count) const {
    count = warp_sum(count);
    sum = warp_sum(sum);
    float mean = p.norm.centre && count > 0 ? sum / count : 0, squares = 0;
    for (int k = first_own(); k < p.inputs; k += kStep) {
      const auto pack = LanesSideBySide::load(row, k);
#pragma unroll
      for (int j = 0; j < FewRowBlock::kPack; ++j) {
        const float off = pack.values[j] - mean;
        squares = fmaf(off, off, squares);
      }
    }
    squares = warp_sum(squares);
    const float width = static_cast<float>(p.inputs);
    if constexpr (kWarpsOfRow > 1) {
      const int warp = threadIdx.x / 32;
      if (threadIdx.x % 32 == 0) moments[warp] = make_float4(count, mean, squares, 0);
      __syncthreads();
      const float4* parts = moments + warp / kWarpsOfRow * kWarpsOfRow;
      mean = squares = 0;
#pragma unroll
      for (int w = 0; w < kWarpsOfRow; ++w) mean = fmaf(parts[w].x, parts[w].y, mean);
      mean /= width;
#pragma unroll
      for (int w = 0; w < kWarpsOfRow; ++w) {
        const float off = parts[w].y - mean;
        squares += fmaf(parts[w].x * off, off, parts[w].z);
      }
    }
    const float scale = rsqrtf(squares / width + p.norm.epsilon);
    for (int k = first_own(); k < p.inputs; k += kStep) {
      auto pack = LanesSideBySide::load(row, k);
      const auto weight = LanesSideBySide::load(norm_weight, k);
      const auto bias = LanesSideBySide::load(norm_bias, k);
#pragma unroll
      for (int j = 0; j < FewRowBlock::kPack; ++j)
        pack.values[j] = fmaf((pack.values[j] - mean) * scale, weight.values[j], bias.values[j]);
      LanesSideBySide::store(pack, row, k);
    }
  }

  const FewRowProduct& p;
  const int padded;
  float4* const moments;               // [FewRowBlock::kWarps]
  float *x, *norm_weight, *norm_bias;  // [kRows, padded], [padded] twice
};

// From a sum to an element of y. Bias, factor and residual are loaded early, which hides a latency.
struct OutputEpilogue {
  float bias, factor, residual;

  __device__ __forceinline__ OutputEpilogue(const FewRowProduct& p, int64_t r, int64_t n)
      : bias(0), factor(1), residual(0) {
    if (r >= p.rows || n >= p.outputs) return;
    const auto at = [](const void* values, int64_t i) {
      return to_float(__ldcg(static_cast<const __nv_bfloat16*>(values) + i));
    };
    if (p.bias != nullptr) bias = at(p.bias, n);
    if (p.factor != nullptr) factor = at(p.factor, r * p.outputs + n);
    if (p.residual != nullptr) residual = at(p.residual, r * p.outputs + n);
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

// Sums every value over the warp; while there are several values, each step halves how many a lane
// carries. Lane i ends with the sum of value i · kCount / 32.
template <int kCount>
__device__ __forceinline__ float scatter_sums(float (&values)[kCount]) {
  static_assert(kCount <= 32 && (kCount & (kCount - 1)) == 0, "at most one value a lane");
  int count = kCount;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    if (count == 1) {
      values[0] += __shfl_xor_sync(kWholeWarp, values[0], step);
      continue;
    }
    count /= 2;
    const bool upper = (threadIdx.x & step) != 0;
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      if (i >= count) continue;
      const float mine = upper ? values[i + count] : values[i];
      const float other = upper ? values[i] : values[i + count];
      values[i] = mine + __shfl_xor_sync(kWholeWarp, other, step);
    }
  }
  return values[0];
}

}  // namespace dofla::cuda
