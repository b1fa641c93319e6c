// Rows of logits, one block a row: sums that are the same in every thread.
#pragma once

#include <cmath>

#include "dofla/ops/cuda/vector.cuh"

namespace dofla::cuda {

// The block that works on one row of logits.
struct LogitBlock {
  static constexpr int kThreads = 512, kWarps = kThreads / 32;
};

// A maximum and the sum of exponentials relative to it, joined in any order.
struct LogSum {
  float peak = -INFINITY;
  float sum = 0;

  template <int kCount>
  __device__ void add(const float (&x)[kCount]) {
    float most = peak;
#pragma unroll
    for (int i = 0; i < kCount; ++i) most = fmaxf(most, x[i]);
    if (most > peak) {
      sum *= __expf(peak - most);
      peak = most;
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) sum += __expf(x[i] - peak);
  }
  __device__ void join(float other_peak, float other_sum) {
    const float most = fmaxf(peak, other_peak);
    if (most == -INFINITY) return;
    sum = sum * __expf(peak - most) + other_sum * __expf(other_peak - most);
    peak = most;
  }
};

// How many elements from the start of a row can be taken in packs.
template <class T>
__device__ int64_t packed_part(const T* row, int64_t count) {
  return reinterpret_cast<uintptr_t>(row) % 16 == 0 ? count / Pack<T>::kSize * Pack<T>::kSize : 0;
}

// Whether a row has no part in the gradient; its own is then written as zeros, its loss as 0.
template <class T>
__device__ bool is_left_out(float factor, T* row, int64_t count, float* loss) {
  if (factor != 0) return false;
  for (int64_t i = threadIdx.x; i < count; i += LogitBlock::kThreads) row[i] = from_float<T>(0);
  if (threadIdx.x == 0) *loss = 0;
  return true;
}

// log Σ exp(row), the same in every thread.
template <class T>
__device__ float row_log_sum(const T* row, int64_t count) {
  __shared__ float peaks[LogitBlock::kWarps], sums[LogitBlock::kWarps];
  LogSum mine;
  const int64_t packed = packed_part(row, count);
  for (int64_t i = threadIdx.x * Pack<T>::kSize; i < packed;
       i += LogitBlock::kThreads * Pack<T>::kSize)
    mine.add(load_pack(row + i).values);
  for (int64_t i = packed + threadIdx.x; i < count; i += LogitBlock::kThreads)
    mine.add({to_float(row[i])});
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    mine.join(__shfl_xor_sync(kWholeWarp, mine.peak, step),
              __shfl_xor_sync(kWholeWarp, mine.sum, step));
  __syncthreads();  // an earlier row's parts may still be read
  if (threadIdx.x % 32 == 0) {
    peaks[threadIdx.x / 32] = mine.peak;
    sums[threadIdx.x / 32] = mine.sum;
  }
  __syncthreads();
  LogSum all;
  for (int w = 0; w < LogitBlock::kWarps; ++w) all.join(peaks[w], sums[w]);
  return all.peak + logf(all.sum);
}

// The sum over the block, the same in every thread; once a kernel.
__device__ inline float block_sum(float x) {
  __shared__ float parts[LogitBlock::kWarps];
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0;
  for (int w = 0; w < LogitBlock::kWarps; ++w) sum += parts[w];
  return sum;
}

}  // namespace dofla::cuda
