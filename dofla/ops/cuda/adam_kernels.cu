#include <cuda_bf16.h>

#include "dofla/ops/cuda/adam.cuh"
#include "dofla/ops/cuda/adam_kernels.h"
#include "dofla/ops/cuda/block_total.cuh"

namespace dofla::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kFour = 4;  // elements that a thread takes at once
constexpr int kRounds = kSquaresBlock / (kFour * kThreads);
static_assert(kRounds * kFour * kThreads == kSquaresBlock);

// The last tensor that begins with this block or before it: all threads look at the table together.
__device__ int tensor_of(uint32_t block, const uint32_t* __restrict__ firsts, int tensors) {
  int begun = 0;
  for (int at = 0; at < tensors; at += kThreads) {
    const int tensor = at + static_cast<int>(threadIdx.x);
    begun += __syncthreads_count(tensor < tensors && firsts[tensor] <= block);
  }
  return begun - 1;
}

// What a step has read it does not need again: it makes room for gradients that the norm has left
// in the cache.
__device__ void read(const float* from, float (&x)[kFour]) {
  const float4 all = __ldcs(reinterpret_cast<const float4*>(from));
  x[0] = all.x, x[1] = all.y, x[2] = all.z, x[3] = all.w;
}
__device__ void read(const uint16_t* from, float (&x)[kFour]) {
  const uint2 all = __ldcs(reinterpret_cast<const uint2*>(from));
  x[0] = __uint_as_float(all.x << 16), x[1] = __uint_as_float(all.x & 0xffff0000u);
  x[2] = __uint_as_float(all.y << 16), x[3] = __uint_as_float(all.y & 0xffff0000u);
}
__device__ void read(const float* from, float (&x)[1]) {
  x[0] = *from;
}
__device__ void read(const uint16_t* from, float (&x)[1]) {
  x[0] = __uint_as_float(uint32_t{*from} << 16);
}

__device__ void write(const float (&x)[kFour], float* to) {
  __stcs(reinterpret_cast<float4*>(to), make_float4(x[0], x[1], x[2], x[3]));
}
__device__ void write(const uint16_t (&x)[kFour], uint16_t* to) {
  __stcs(reinterpret_cast<uint2*>(to),
         make_uint2(x[0] | uint32_t{x[1]} << 16, x[2] | uint32_t{x[3]} << 16));
}
template <class T>
__device__ void write(const T (&x)[1], T* to) {
  *to = x[0];
}

// A gradient is read without a hint: what comes last stays in the cache for the step.
__global__ void __launch_bounds__(kThreads)
    square_blocks(BlockTable<GradientRow> table, double* __restrict__ sums) {
  const int tensor = tensor_of(blockIdx.x, table.firsts, table.tensors);
  const GradientRow row = table.rows[tensor];
  const int64_t begin = int64_t{blockIdx.x - table.firsts[tensor]} * kSquaresBlock;
  double sum = 0;  // in double: a square overflows float at 2⁶⁴
  const auto add = [&](double x) { sum = fma(x, x, sum); };
  if (row.in_packs && begin + kSquaresBlock <= row.count) {
    const auto* from = reinterpret_cast<const float4*>(row.gradient + begin) + threadIdx.x;
    float4 x[kRounds];
#pragma unroll
    for (int round = 0; round < kRounds; ++round) x[round] = from[round * kThreads];
#pragma unroll
    for (int round = 0; round < kRounds; ++round)
      add(x[round].x), add(x[round].y), add(x[round].z), add(x[round].w);
  } else {
    const int64_t end = min(begin + kSquaresBlock, row.count);
    for (int64_t at = begin + threadIdx.x; at < end; at += kThreads) add(row.gradient[at]);
  }
  sum = block_total<kThreads>(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

constexpr int kNormThreads = 1024;

__global__ void __launch_bounds__(kNormThreads)
    norm_of_sums(uint32_t count, const double* __restrict__ sums, double* __restrict__ norm) {
  double sum = 0;
#pragma unroll 8
  for (uint32_t i = threadIdx.x; i < count; i += kNormThreads) sum += sums[i];
  sum = block_total<kNormThreads>(sum);
  if (threadIdx.x == 0) *norm = sqrt(sum);
}

template <int kCount>
__device__ void write_moments(const AdamRow& row, int64_t at, const float (&mean)[kCount],
                              const float (&square)[kCount], const float*) {
  write(mean, static_cast<float*>(row.mean) + at);
  write(square, static_cast<float*>(row.square) + at);
}

template <int kCount>
__device__ void write_moments(const AdamRow& row, int64_t at, const float (&mean)[kCount],
                              const float (&square)[kCount], const uint16_t*) {
  uint16_t short_mean[kCount], short_square[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const uint64_t bits = mixed(row.chance.key + static_cast<uint64_t>(row.chance.first + at + i));
    short_mean[i] = rounded_by_chance(mean[i], bits);
    short_square[i] = rounded_by_chance(square[i], bits >> 16);
  }
  write(short_mean, static_cast<uint16_t*>(row.mean) + at);
  write(short_square, static_cast<uint16_t*>(row.square) + at);
}

// The elements from `at` on, kFour of them at once or one.
template <class Moment, int kCount>
__device__ void step_elements(const AdamRow& row, float scale, int64_t at) {
  float gradient[kCount], mean[kCount], square[kCount], value[kCount];
  read(row.gradient + at, gradient);
  read(static_cast<const Moment*>(row.mean) + at, mean);
  read(static_cast<const Moment*>(row.square) + at, square);
  read(row.value + at, value);
#pragma unroll
  for (int i = 0; i < kCount; ++i)  // rounded, not part of what follows
    adam_element(row.factors, __fmul_rn(gradient[i], scale), mean[i], square[i], value[i]);
  write(value, row.value + at);
  write_moments(row, at, mean, square, static_cast<const Moment*>(nullptr));
  if (row.copy == nullptr) return;
  uint16_t copy[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) copy[i] = __bfloat16_as_ushort(__float2bfloat16_rn(value[i]));
  write(copy, row.copy + at);
}

// Blocks run from the last to the first: the gradients that the norm was taken of last are in the
// cache.
template <class Moment>
__global__ void __launch_bounds__(kThreads)
    step_blocks(BlockTable<AdamRow> table, const double* __restrict__ norm, double max_norm) {
  const double found = norm == nullptr ? 0 : *norm;
  if (!isfinite(found)) return;
  const float scale = found > max_norm ? static_cast<float>(max_norm / found) : 1;
  const uint32_t block = table.blocks - 1 - blockIdx.x;
  const int tensor = tensor_of(block, table.firsts, table.tensors);
  const AdamRow row = table.rows[tensor];
  const int64_t begin = int64_t{block - table.firsts[tensor]} * kSquaresBlock;
  const int64_t end = min(begin + kSquaresBlock, row.count);
  if (row.in_packs && end - begin == kSquaresBlock) {
#pragma unroll 1
    for (int64_t at = begin + threadIdx.x * kFour; at < end; at += kFour * kThreads)
      step_elements<Moment, kFour>(row, scale, at);
  } else {
    for (int64_t at = begin + threadIdx.x; at < end; at += kThreads)
      step_elements<Moment, 1>(row, scale, at);
  }
}

}  // namespace

cudaError_t launch_block_squares(const BlockTable<GradientRow>& table, double* sums,
                                 cudaStream_t stream) {
  if (table.blocks > 0) square_blocks<<<table.blocks, kThreads, 0, stream>>>(table, sums);
  return cudaGetLastError();
}

cudaError_t launch_norm(uint32_t count, const double* sums, double* norm, cudaStream_t stream) {
  norm_of_sums<<<1, kNormThreads, 0, stream>>>(count, sums, norm);
  return cudaGetLastError();
}

cudaError_t launch_adam(const BlockTable<AdamRow>& table, Element moments, const double* norm,
                        double max_norm, cudaStream_t stream) {
  if (table.blocks == 0) return cudaSuccess;
  if (moments == Element::kBF16)
    step_blocks<uint16_t><<<table.blocks, kThreads, 0, stream>>>(table, norm, max_norm);
  else
    step_blocks<float><<<table.blocks, kThreads, 0, stream>>>(table, norm, max_norm);
  return cudaGetLastError();
}

}  // namespace dofla::cuda
