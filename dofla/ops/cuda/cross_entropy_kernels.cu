#include <cmath>

#include "dofla/ops/cuda/cross_entropy_kernels.h"
#include "dofla/ops/cuda/vector.cuh"

namespace dofla::cuda {
namespace {

constexpr int kThreads = 512;  // of a block, which works on one row
constexpr int kWarps = kThreads / 32;

struct Peak {
  float value;
  int64_t at;  // the first place of that value
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

// log Σ exp(row), the same in every thread.
template <class T>
__device__ float row_log_sum(const T* row, int64_t count) {
  __shared__ float peaks[kWarps], sums[kWarps];
  LogSum mine;
  const int64_t packed = packed_part(row, count);
  for (int64_t i = threadIdx.x * Pack<T>::kSize; i < packed; i += kThreads * Pack<T>::kSize)
    mine.add(load_pack(row + i).values);
  for (int64_t i = packed + threadIdx.x; i < count; i += kThreads) mine.add({to_float(row[i])});
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
  for (int w = 0; w < kWarps; ++w) all.join(peaks[w], sums[w]);
  return all.peak + logf(all.sum);
}

template <class T>
__global__ void cross_entropy_rows(LogitPanel panel, const T* __restrict__ logits,
                                   const int64_t* __restrict__ targets, float* __restrict__ loss) {
  const T* row = logits + blockIdx.x * panel.stride;
  const float log_sum = row_log_sum(row, panel.vocabulary);
  if (threadIdx.x == 0) loss[blockIdx.x] = log_sum - to_float(row[targets[blockIdx.x]]);
}

template <class T>
__global__ void cross_entropy_rows_backward(LogitPanel panel, T* __restrict__ logits,
                                            const int64_t* __restrict__ targets,
                                            const float* __restrict__ grad_loss,
                                            float* __restrict__ loss) {
  T* row = logits + blockIdx.x * panel.stride;
  const int64_t target = targets[blockIdx.x];
  const float factor = grad_loss[blockIdx.x];
  if (factor == 0) {  // a row left out
    for (int64_t i = threadIdx.x; i < panel.vocabulary; i += kThreads) row[i] = from_float<T>(0);
    if (threadIdx.x == 0) loss[blockIdx.x] = 0;
    return;
  }
  const float log_sum = row_log_sum(row, panel.vocabulary);
  if (threadIdx.x == 0) loss[blockIdx.x] = log_sum - to_float(row[target]);
  __syncthreads();
  const auto gradient = [&](int64_t i, float logit) {
    return factor * (__expf(logit - log_sum) - (i == target ? 1.0f : 0.0f));
  };
  const int64_t packed = packed_part(row, panel.vocabulary);
  for (int64_t i = threadIdx.x * Pack<T>::kSize; i < packed; i += kThreads * Pack<T>::kSize) {
    Pack<T> pack = load_pack(row + i);
#pragma unroll
    for (int j = 0; j < Pack<T>::kSize; ++j) pack.values[j] = gradient(i + j, pack.values[j]);
    store_pack(pack, row + i);
  }
  for (int64_t i = packed + threadIdx.x; i < panel.vocabulary; i += kThreads)
    row[i] = from_float<T>(gradient(i, to_float(row[i])));
}

__device__ int64_t row_argmax(const float* row, int64_t count) {
  __shared__ Peak peaks[kWarps];
  Peak mine = {-INFINITY, count};
  for (int64_t i = threadIdx.x; i < count; i += kThreads)
    if (row[i] > mine.value) mine = {row[i], i};
  const auto keep = [&](float value, int64_t at) {
    if (value > mine.value || (value == mine.value && at < mine.at)) mine = {value, at};
  };
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const float value = __shfl_xor_sync(kWholeWarp, mine.value, step);
    const int64_t at = __shfl_xor_sync(kWholeWarp, static_cast<long long>(mine.at), step);
    keep(value, at);
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) peaks[threadIdx.x / 32] = mine;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) keep(peaks[w].value, peaks[w].at);
  return mine.at;
}

__global__ void divergence_rows(const float* __restrict__ teacher,
                                const float* __restrict__ student, int64_t vocabulary,
                                const int64_t* __restrict__ targets, double* __restrict__ out) {
  __shared__ double parts[kWarps];
  const float* t = teacher + blockIdx.x * vocabulary;
  const float* s = student + blockIdx.x * vocabulary;
  const float t_sum = row_log_sum(t, vocabulary), s_sum = row_log_sum(s, vocabulary);
  const int64_t t_best = row_argmax(t, vocabulary), s_best = row_argmax(s, vocabulary);
  float kl = 0;
  for (int64_t i = threadIdx.x; i < vocabulary; i += kThreads) {
    const float log_p = t[i] - t_sum;
    kl += __expf(log_p) * (log_p - (s[i] - s_sum));
  }
  kl = warp_sum(kl);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = kl;
  __syncthreads();
  if (threadIdx.x != 0) return;
  double total = 0;
  for (int w = 0; w < kWarps; ++w) total += parts[w];
  const int64_t target = targets[blockIdx.x];
  double* row = out + 4 * blockIdx.x;
  row[0] = static_cast<double>(t_sum) - t[target];
  row[1] = static_cast<double>(s_sum) - s[target];
  row[2] = total > 0 ? total : 0;  // rounding can take it a little below 0, where it cannot be
  row[3] = t_best == s_best;
}

constexpr int kCopied = 4;  // elements of a thread

template <class T>
__global__ void __launch_bounds__(kThreads)
    copy_panel(LogitPanel panel, const T* __restrict__ logits, const void* __restrict__ bias,
               Element bias_element, T* __restrict__ y) {
  const int64_t row = blockIdx.y;
#pragma unroll
  for (int i = 0; i < kCopied; ++i) {
    const int64_t n = (blockIdx.x * int64_t{kCopied} + i) * kThreads + threadIdx.x;
    if (n >= panel.vocabulary) return;
    T value = logits[row * panel.stride + n];
    if (bias != nullptr)
      value = from_float<T>(to_float(value) +
                            (bias_element == Element::kF32
                                 ? static_cast<const float*>(bias)[n]
                                 : to_float(static_cast<const __nv_bfloat16*>(bias)[n])));
    y[row * panel.vocabulary + n] = value;
  }
}

}  // namespace

cudaError_t launch_cross_entropy_rows(const LogitPanel& panel, const void* logits,
                                      const int64_t* targets, float* loss, cudaStream_t stream) {
  return with_type(panel.element, [&](auto zero) {
    using T = decltype(zero);
    if (panel.rows > 0)
      cross_entropy_rows<<<static_cast<unsigned>(panel.rows), kThreads, 0, stream>>>(
          panel, static_cast<const T*>(logits), targets, loss);
  });
}

cudaError_t launch_cross_entropy_rows_backward(const LogitPanel& panel, void* logits,
                                               const int64_t* targets, const float* grad_loss,
                                               float* loss, cudaStream_t stream) {
  return with_type(panel.element, [&](auto zero) {
    using T = decltype(zero);
    if (panel.rows > 0)
      cross_entropy_rows_backward<<<static_cast<unsigned>(panel.rows), kThreads, 0, stream>>>(
          panel, static_cast<T*>(logits), targets, grad_loss, loss);
  });
}

cudaError_t launch_copy_panel(const LogitPanel& panel, const void* logits, const void* bias,
                              Element bias_element, void* y, cudaStream_t stream) {
  return with_type(panel.element, [&](auto zero) {
    using T = decltype(zero);
    if (panel.rows > 0)
      copy_panel<<<dim3(blocks_for(panel.vocabulary, kCopied * kThreads),
                        static_cast<unsigned>(panel.rows)),
                   kThreads, 0, stream>>>(panel, static_cast<const T*>(logits), bias, bias_element,
                                          static_cast<T*>(y));
  });
}

cudaError_t launch_divergence_rows(const float* teacher, const float* student, int64_t rows,
                                   int64_t vocabulary, const int64_t* targets, double* out,
                                   cudaStream_t stream) {
  if (rows > 0)
    divergence_rows<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(teacher, student,
                                                                          vocabulary, targets, out);
  return cudaGetLastError();
}

}  // namespace dofla::cuda
