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

// The largest of the block's peaks, of equal ones the first; the same in every thread.
__device__ Peak block_best(Peak mine) {
  __shared__ Peak peaks[LogitBlock::kWarps];
  const auto keep = [&](float value, int64_t at) {
    if (value > mine.value || (value == mine.value && at < mine.at)) mine = {value, at};
  };
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const float value = __shfl_xor_sync(kWholeWarp, mine.value, step);
    const int64_t at = __shfl_xor_sync(kWholeWarp, static_cast<long long>(mine.at), step);
    keep(value, at);
  }
  __syncthreads();  // an earlier round's may still be read
  if (threadIdx.x % 32 == 0) peaks[threadIdx.x / 32] = mine;
  __syncthreads();
  for (int w = 0; w < LogitBlock::kWarps; ++w) keep(peaks[w].value, peaks[w].at);
  return mine;
}

constexpr int kTop = 5;  // as TokenStatistics has it

// The places of a row's kTop largest numbers, largest first; `count` where there are no more. Every
// thread keeps the largest of its own, and in each round the one that has the largest of all gives
// it away.
__device__ void row_top(const float* row, int64_t count, int64_t (&places)[kTop]) {
  Peak own[kTop];
#pragma unroll
  for (int k = 0; k < kTop; ++k) own[k] = {-INFINITY, count};
  for (int64_t i = threadIdx.x; i < count; i += LogitBlock::kThreads) {
    Peak next = {row[i], i};
    if (!(next.value > own[kTop - 1].value)) continue;
#pragma unroll
    for (int k = 0; k < kTop; ++k)
      if (next.value > own[k].value) {
        const Peak moved = own[k];
        own[k] = next;
        next = moved;
      }
  }
#pragma unroll
  for (int round = 0; round < kTop; ++round) {
    places[round] = block_best(own[0]).at;
    if (places[round] != own[0].at) continue;
#pragma unroll
    for (int k = 0; k + 1 < kTop; ++k) own[k] = own[k + 1];
    own[kTop - 1] = {-INFINITY, count};
  }
}

__global__ void token_statistics(const float* __restrict__ teacher,
                                 const float* __restrict__ student, int64_t vocabulary,
                                 const int64_t* __restrict__ targets, double* __restrict__ out) {
  const float* t = teacher + blockIdx.x * vocabulary;
  const float* s = student + blockIdx.x * vocabulary;
  const float t_sum = row_log_sum(t, vocabulary), s_sum = row_log_sum(s, vocabulary);
  int64_t t_top[kTop], s_top[kTop];
  row_top(t, vocabulary, t_top);
  row_top(s, vocabulary, s_top);
  double kl = 0, t_entropy = 0, s_entropy = 0;
  for (int64_t i = threadIdx.x; i < vocabulary; i += LogitBlock::kThreads) {
    const float log_p = t[i] - t_sum, log_q = s[i] - s_sum;
    const float p = __expf(log_p), q = __expf(log_q);
    kl += p * (log_p - log_q);
    t_entropy -= p * log_p;
    s_entropy -= q * log_q;
  }
  kl = block_total<LogitBlock::kThreads>(kl);
  t_entropy = block_total<LogitBlock::kThreads>(t_entropy);
  s_entropy = block_total<LogitBlock::kThreads>(s_entropy);
  if (threadIdx.x != 0) return;
  int shared = 0;
  for (int i = 0; i < kTop; ++i)
    for (int j = 0; j < kTop; ++j) shared += t_top[i] == s_top[j] && t_top[i] < vocabulary;
  const int64_t target = targets[blockIdx.x];
  double* row = out + kTokenNumbers * blockIdx.x;
  row[0] = static_cast<double>(t_sum) - t[target];
  row[1] = static_cast<double>(s_sum) - s[target];
  row[2] = kl < 0 ? 0 : kl;  // rounding can take it a little below 0, where it cannot be
  row[3] = t_entropy;
  row[4] = s_entropy;
  // A row that is nowhere a number has no likeliest token: its loss says so, and place 0 is safe.
  const int64_t t_best = t_top[0] < vocabulary ? t_top[0] : 0;
  const int64_t s_best = s_top[0] < vocabulary ? s_top[0] : 0;
  row[5] = exp(static_cast<double>(t[t_best]) - t_sum);
  row[6] = exp(static_cast<double>(s[s_best]) - s_sum);
  row[7] = static_cast<double>(t_best);
  row[8] = static_cast<double>(s_best);
  row[9] = shared;
}

// Block (x, h) adds up every kOutputSums-th stretch of LogitBlock::kThreads elements of head h.
template <class T>
__global__ void head_errors(int64_t rows, int64_t head_size, const T* __restrict__ teacher,
                            const T* __restrict__ student, double* __restrict__ sums) {
  const int64_t heads = gridDim.y, head = blockIdx.y;
  double signal = 0, error = 0;
  for (int64_t i = blockIdx.x * int64_t{LogitBlock::kThreads} + threadIdx.x; i < rows * head_size;
       i += kOutputSums * LogitBlock::kThreads) {
    const int64_t at = (i / head_size * heads + head) * head_size + i % head_size;
    const double wanted = to_float(teacher[at]), off = to_float(student[at]) - wanted;
    signal += wanted * wanted;
    error += off * off;
  }
  signal = block_total<LogitBlock::kThreads>(signal);
  error = block_total<LogitBlock::kThreads>(error);
  if (threadIdx.x != 0) return;
  double* part = sums + 2 * (head * kOutputSums + blockIdx.x);
  part[0] = signal;
  part[1] = error;
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

cudaError_t launch_token_statistics(const float* teacher, const float* student, int64_t rows,
                                    int64_t vocabulary, const int64_t* targets, double* out,
                                    cudaStream_t stream) {
  if (rows > 0)
    token_statistics<<<static_cast<unsigned>(rows), LogitBlock::kThreads, 0, stream>>>(
        teacher, student, vocabulary, targets, out);
  return cudaGetLastError();
}

cudaError_t launch_head_errors(Element element, int64_t rows, int64_t heads, int64_t head_size,
                               const void* teacher, const void* student, double* sums,
                               cudaStream_t stream) {
  return with_type(element, [&](auto zero) {
    using T = decltype(zero);
    const dim3 blocks(kOutputSums, static_cast<unsigned>(heads));
    head_errors<<<blocks, LogitBlock::kThreads, 0, stream>>>(
        rows, head_size, static_cast<const T*>(teacher), static_cast<const T*>(student), sums);
  });
}

}  // namespace dofla::cuda
