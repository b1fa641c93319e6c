#include "dofla/ops/cuda/cross_entropy_kernels.h"
#include "dofla/ops/cuda/logit_rows.cuh"

namespace dofla::cuda {
namespace {

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
  if (is_left_out(factor, row, panel.vocabulary, &loss[blockIdx.x])) return;
  const float log_sum = row_log_sum(row, panel.vocabulary);
  if (threadIdx.x == 0) loss[blockIdx.x] = log_sum - to_float(row[target]);
  __syncthreads();
  const auto gradient = [&](int64_t i, float logit) {
    return factor * (__expf(logit - log_sum) - (i == target ? 1.0f : 0.0f));
  };
  const int64_t packed = packed_part(row, panel.vocabulary);
  for (int64_t i = threadIdx.x * Pack<T>::kSize; i < packed;
       i += LogitBlock::kThreads * Pack<T>::kSize) {
    Pack<T> pack = load_pack(row + i);
#pragma unroll
    for (int j = 0; j < Pack<T>::kSize; ++j) pack.values[j] = gradient(i + j, pack.values[j]);
    store_pack(pack, row + i);
  }
  for (int64_t i = packed + threadIdx.x; i < panel.vocabulary; i += LogitBlock::kThreads)
    row[i] = from_float<T>(gradient(i, to_float(row[i])));
}

constexpr int kCopied = 4;  // elements of a thread

template <class T>
__global__ void __launch_bounds__(LogitBlock::kThreads)
    copy_panel(LogitPanel panel, const T* __restrict__ logits, const void* __restrict__ bias,
               Element bias_element, T* __restrict__ y) {
  const int64_t row = blockIdx.y;
#pragma unroll
  for (int i = 0; i < kCopied; ++i) {
    const int64_t n = (blockIdx.x * int64_t{kCopied} + i) * LogitBlock::kThreads + threadIdx.x;
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
      cross_entropy_rows<<<static_cast<unsigned>(panel.rows), LogitBlock::kThreads, 0, stream>>>(
          panel, static_cast<const T*>(logits), targets, loss);
  });
}

cudaError_t launch_cross_entropy_rows_backward(const LogitPanel& panel, void* logits,
                                               const int64_t* targets, const float* grad_loss,
                                               float* loss, cudaStream_t stream) {
  return with_type(panel.element, [&](auto zero) {
    using T = decltype(zero);
    if (panel.rows > 0)
      cross_entropy_rows_backward<<<static_cast<unsigned>(panel.rows), LogitBlock::kThreads, 0,
                                    stream>>>(panel, static_cast<T*>(logits), targets, grad_loss,
                                              loss);
  });
}

cudaError_t launch_copy_panel(const LogitPanel& panel, const void* logits, const void* bias,
                              Element bias_element, void* y, cudaStream_t stream) {
  return with_type(panel.element, [&](auto zero) {
    using T = decltype(zero);
    if (panel.rows > 0)
      copy_panel<<<dim3(blocks_for(panel.vocabulary, kCopied * LogitBlock::kThreads),
                        static_cast<unsigned>(panel.rows)),
                   LogitBlock::kThreads, 0, stream>>>(panel, static_cast<const T*>(logits), bias,
                                                      bias_element, static_cast<T*>(y));
  });
}

}  // namespace dofla::cuda
