// How far a student is from its teacher: in the next token, row by row, and in a layer's output.
#include "dofla/ops/cuda/block_total.cuh"
#include "dofla/ops/cuda/cross_entropy_kernels.h"
#include "dofla/ops/cuda/logit_rows.cuh"

namespace dofla::cuda {
namespace {

struct Peak {
  float value;
  int64_t at;  // the first place of that value
};

template <class T>
__global__ void imitation_rows_backward(LogitPanel panel, const T* __restrict__ teacher,
                                        T* __restrict__ logits, const float* __restrict__ grad_loss,
                                        float* __restrict__ loss) {
  T* row = logits + blockIdx.x * panel.stride;
  const T* said = teacher + blockIdx.x * panel.stride;
  const float factor = grad_loss[blockIdx.x];
  if (is_left_out(factor, row, panel.vocabulary, &loss[blockIdx.x])) return;
  const float log_sum = row_log_sum(row, panel.vocabulary);
  const float said_log_sum = row_log_sum(said, panel.vocabulary);
  float divergence = 0;
  const auto gradient = [&](float teachers, float logit) {
    const float log_wanted = teachers - said_log_sum, log_found = logit - log_sum;
    const float wanted = __expf(log_wanted);
    divergence = fmaf(wanted, log_wanted - log_found, divergence);
    return factor * (__expf(log_found) - wanted);
  };
  const int64_t packed =
      min(packed_part(row, panel.vocabulary), packed_part(said, panel.vocabulary));
  for (int64_t i = threadIdx.x * Pack<T>::kSize; i < packed;
       i += LogitBlock::kThreads * Pack<T>::kSize) {
    const Pack<T> teachers = load_pack(said + i);
    Pack<T> pack = load_pack(row + i);
#pragma unroll
    for (int j = 0; j < Pack<T>::kSize; ++j)
      pack.values[j] = gradient(teachers.values[j], pack.values[j]);
    store_pack(pack, row + i);
  }
  for (int64_t i = packed + threadIdx.x; i < panel.vocabulary; i += LogitBlock::kThreads)
    row[i] = from_float<T>(gradient(to_float(said[i]), to_float(row[i])));
  divergence = block_sum(divergence);
  // Rounding can take it a little below 0, where it cannot be.
  if (threadIdx.x == 0) loss[blockIdx.x] = fmaxf(divergence, 0);
}

__device__ int64_t row_argmax(const float* row, int64_t count) {
  __shared__ Peak peaks[LogitBlock::kWarps];
  Peak mine = {-INFINITY, count};
  for (int64_t i = threadIdx.x; i < count; i += LogitBlock::kThreads)
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
  for (int w = 0; w < LogitBlock::kWarps; ++w) keep(peaks[w].value, peaks[w].at);
  return mine.at;
}

__global__ void divergence_rows(const float* __restrict__ teacher,
                                const float* __restrict__ student, int64_t vocabulary,
                                const int64_t* __restrict__ targets, double* __restrict__ out) {
  const float* t = teacher + blockIdx.x * vocabulary;
  const float* s = student + blockIdx.x * vocabulary;
  const float t_sum = row_log_sum(t, vocabulary), s_sum = row_log_sum(s, vocabulary);
  const int64_t t_best = row_argmax(t, vocabulary), s_best = row_argmax(s, vocabulary);
  float kl = 0;
  for (int64_t i = threadIdx.x; i < vocabulary; i += LogitBlock::kThreads) {
    const float log_p = t[i] - t_sum;
    kl += __expf(log_p) * (log_p - (s[i] - s_sum));
  }
  kl = block_sum(kl);
  if (threadIdx.x != 0) return;
  const int64_t target = targets[blockIdx.x];
  double* row = out + 4 * blockIdx.x;
  row[0] = static_cast<double>(t_sum) - t[target];
  row[1] = static_cast<double>(s_sum) - s[target];
  row[2] = fmaxf(kl, 0);  // rounding can take it a little below 0, where it cannot be
  row[3] = t_best == s_best;
}

// A block adds up every kOutputSums-th stretch of LogitBlock::kThreads elements.
template <class T>
__global__ void output_errors(int64_t count, const T* __restrict__ teacher,
                              const T* __restrict__ student, double* __restrict__ sums) {
  double signal = 0, error = 0;
  for (int64_t i = blockIdx.x * int64_t{LogitBlock::kThreads} + threadIdx.x; i < count;
       i += int64_t{kOutputSums} * LogitBlock::kThreads) {
    const double wanted = to_float(teacher[i]), off = to_float(student[i]) - wanted;
    signal += wanted * wanted;
    error += off * off;
  }
  signal = block_total<LogitBlock::kThreads>(signal);
  error = block_total<LogitBlock::kThreads>(error);
  if (threadIdx.x != 0) return;
  sums[2 * blockIdx.x] = signal;
  sums[2 * blockIdx.x + 1] = error;
}

}  // namespace

cudaError_t launch_imitation_rows_backward(const LogitPanel& panel, const void* teacher,
                                           void* logits, const float* grad_loss, float* loss,
                                           cudaStream_t stream) {
  return with_type(panel.element, [&](auto zero) {
    using T = decltype(zero);
    if (panel.rows > 0)
      imitation_rows_backward<<<static_cast<unsigned>(panel.rows), LogitBlock::kThreads, 0,
                                stream>>>(panel, static_cast<const T*>(teacher),
                                          static_cast<T*>(logits), grad_loss, loss);
  });
}

cudaError_t launch_divergence_rows(const float* teacher, const float* student, int64_t rows,
                                   int64_t vocabulary, const int64_t* targets, double* out,
                                   cudaStream_t stream) {
  if (rows > 0)
    divergence_rows<<<static_cast<unsigned>(rows), LogitBlock::kThreads, 0, stream>>>(
        teacher, student, vocabulary, targets, out);
  return cudaGetLastError();
}

cudaError_t launch_output_errors(Element element, int64_t count, const void* teacher,
                                 const void* student, double* sums, cudaStream_t stream) {
  return with_type(element, [&](auto zero) {
    using T = decltype(zero);
    output_errors<<<kOutputSums, LogitBlock::kThreads, 0, stream>>>(
        count, static_cast<const T*>(teacher), static_cast<const T*>(student), sums);
  });
}

}  // namespace dofla::cuda
