#include "dofla/ops/cuda/attention_parts.h"
#include "dofla/ops/cuda/launch.cuh"
#include "dofla/ops/cuda/vector.cuh"

namespace dofla::cuda {
namespace {

constexpr int kWarps = 4;  // rows of a block

struct RowPlace {
  int64_t index, b, h, t;
};

// The row of this warp; index is -1 past the last.
__device__ RowPlace place_of_warp(const PartShape& s) {
  const int64_t index = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32;
  if (index >= s.batch * s.heads * s.tokens) return {-1, 0, 0, 0};
  return {index, index / s.tokens / s.heads, index / s.tokens % s.heads, index % s.tokens};
}

template <class T>
__device__ T* row_of(const HeadRowsOut& rows, const RowPlace& at) {
  return static_cast<T*>(rows.data) + at.b * rows.batch_step + at.h * rows.head_step +
         at.t * rows.token_step;
}

template <class T>
__global__ void merge_parts(PartShape s, const __grid_constant__ PartTable table,
                            const float* __restrict__ parts, const float* __restrict__ logs,
                            HeadRowsOut out, float* __restrict__ log_sum) {
  const RowPlace at = place_of_warp(s);
  if (at.index < 0) return;
  const int first = table.first[at.h], last = table.first[at.h + 1];
  const auto part_row = [&](int part) { return (at.b * s.parts + part) * s.tokens + at.t; };
  float top = -INFINITY;
  for (int part = first; part < last; ++part) top = fmaxf(top, logs[part_row(part)]);
  float sum = 0;
  for (int part = first; part < last; ++part) sum += expf(logs[part_row(part)] - top);
  const float log = top + logf(sum);
  if (log_sum != nullptr && threadIdx.x % 32 == 0) log_sum[at.index] = log;
  T* row = row_of<T>(out, at);
  for (int64_t d = threadIdx.x % 32; d < s.width; d += 32) {
    float value = 0;
    for (int part = first; part < last; ++part)
      value += expf(logs[part_row(part)] - log) * parts[part_row(part) * s.width + d];
    row[d] = from_float<T>(value);
  }
}

template <class T>
__global__ void sum_parts(PartShape s, const __grid_constant__ PartTable table,
                          const float* __restrict__ parts, HeadRowsOut out) {
  const RowPlace at = place_of_warp(s);
  if (at.index < 0) return;
  T* row = row_of<T>(out, at);
  for (int64_t d = threadIdx.x % 32; d < s.width; d += 32) {
    float value = 0;
    for (int part = table.first[at.h]; part < table.first[at.h + 1]; ++part)
      value += parts[((at.b * s.parts + part) * s.tokens + at.t) * s.width + d];
    row[d] = from_float<T>(value);
  }
}

template <class T>
__global__ void row_dots(PartShape s, HeadRows x, HeadRows y, float* __restrict__ dots) {
  const RowPlace at = place_of_warp(s);
  if (at.index < 0) return;
  const auto row = [&](const HeadRows& rows) {
    return static_cast<const T*>(rows.data) + at.b * rows.batch_step + at.h * rows.head_step +
           at.t * rows.token_step;
  };
  const T *left = row(x), *right = row(y);
  float sum = 0;
  for (int64_t d = threadIdx.x % 32; d < s.width; d += 32)
    sum = fmaf(to_float(left[d]), to_float(right[d]), sum);
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) dots[at.index] = sum;
}

dim3 grid_of(const PartShape& s) {
  return dim3(blocks_for(s.batch * s.heads * s.tokens, kWarps));
}

}  // namespace

cudaError_t launch_merge_parts(const PartShape& shape, const PartTable& table, const float* parts,
                               const float* logs, const HeadRowsOut& out, float* log_sum,
                               cudaStream_t stream) {
  const auto kernel =
      shape.element == Element::kF32 ? merge_parts<float> : merge_parts<__nv_bfloat16>;
  return launch(kernel, grid_of(shape), 32 * kWarps, 0, stream, shape, table, parts, logs, out,
                log_sum);
}

cudaError_t launch_sum_parts(const PartShape& shape, const PartTable& table, const float* parts,
                             const HeadRowsOut& out, cudaStream_t stream) {
  const auto kernel = shape.element == Element::kF32 ? sum_parts<float> : sum_parts<__nv_bfloat16>;
  return launch(kernel, grid_of(shape), 32 * kWarps, 0, stream, shape, table, parts, out);
}

cudaError_t launch_row_dots(const PartShape& shape, const HeadRows& x, const HeadRows& y,
                            float* dots, cudaStream_t stream) {
  const auto kernel = shape.element == Element::kF32 ? row_dots<float> : row_dots<__nv_bfloat16>;
  return launch(kernel, grid_of(shape), 32 * kWarps, 0, stream, shape, x, y, dots);
}

}  // namespace dofla::cuda
