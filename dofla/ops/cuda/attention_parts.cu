#include "dofla/ops/cuda/attention_parts.h"
#include "dofla/ops/cuda/head_rows.cuh"
#include "dofla/ops/cuda/launch.cuh"

namespace dofla::cuda {
namespace {

// A block has rows of one head of one sequence, kLanes threads each.
constexpr int kThreads = 128;

struct RowPlace {
  int64_t index, b, h, t;  // index in [B, H, T]
};

template <int kLanes>
__device__ __forceinline__ RowPlace place_of_row(const PartShape& s) {
  const int64_t b = blockIdx.z, h = blockIdx.y;
  const int64_t t = blockIdx.x * int64_t{kThreads / kLanes} + threadIdx.x / kLanes;
  return {(b * s.heads + h) * s.tokens + t, b, h, t};
}

template <int kLanes>
dim3 grid_of(const PartShape& s) {
  return dim3(blocks_for(s.tokens, kThreads / kLanes), static_cast<unsigned>(s.heads),
              static_cast<unsigned>(s.batch));
}

template <class T, class Rows>
__device__ __forceinline__ auto row_of(const Rows& rows, const RowPlace& at) {
  return head_of<T>(rows, at.b, at.h) + at.t * rows.token_step;
}

template <class T>
__global__ void merge_parts(PartShape s, const __grid_constant__ PartTable table,
                            const float* __restrict__ parts, const float* __restrict__ logs,
                            HeadRowsOut out, float* __restrict__ log_sum) {
  const RowPlace at = place_of_row<32>(s);
  if (at.t >= s.tokens) return;
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
  const RowPlace at = place_of_row<32>(s);
  if (at.t >= s.tokens) return;
  T* row = row_of<T>(out, at);
  for (int64_t d = threadIdx.x % 32; d < s.width; d += 32) {
    float value = 0;
    for (int part = table.first[at.h]; part < table.first[at.h + 1]; ++part)
      value += parts[((at.b * s.parts + part) * s.tokens + at.t) * s.width + d];
    row[d] = from_float<T>(value);
  }
}

// Eight threads a row: 16 bytes each make the 64 elements of a usual bf16 row.
constexpr int kDotLanes = 8;

template <class T>
__global__ void row_dots(PartShape s, HeadRows x, HeadRows y, bool packed,
                         float* __restrict__ dots) {
  const RowPlace at = place_of_row<kDotLanes>(s);
  const bool valid = at.t < s.tokens;
  float sum = 0;
  if (valid) {
    const T *left = row_of<T>(x, at), *right = row_of<T>(y, at);
    const int lane = threadIdx.x % kDotLanes, width = static_cast<int>(s.width);
    if (packed) {
      constexpr int kSize = Pack<T>::kSize;
      for (int d = kSize * lane; d < width; d += kSize * kDotLanes) {
        const Pack<T> a = load_pack(left + d), b = load_pack(right + d);
#pragma unroll
        for (int i = 0; i < kSize; ++i) sum = fmaf(a.values[i], b.values[i], sum);
      }
    } else {
      for (int d = lane; d < width; d += kDotLanes)
        sum = fmaf(to_float(left[d]), to_float(right[d]), sum);
    }
  }
#pragma unroll
  for (int step = kDotLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kWholeWarp, sum, step);
  if (valid && threadIdx.x % kDotLanes == 0) dots[at.index] = sum;
}

}  // namespace

cudaError_t launch_merge_parts(const PartShape& shape, const PartTable& table, const float* parts,
                               const float* logs, const HeadRowsOut& out, float* log_sum,
                               cudaStream_t stream) {
  const auto kernel =
      shape.element == Element::kF32 ? merge_parts<float> : merge_parts<__nv_bfloat16>;
  return launch(kernel, grid_of<32>(shape), kThreads, 0, stream, shape, table, parts, logs, out,
                log_sum);
}

cudaError_t launch_sum_parts(const PartShape& shape, const PartTable& table, const float* parts,
                             const HeadRowsOut& out, cudaStream_t stream) {
  const auto kernel = shape.element == Element::kF32 ? sum_parts<float> : sum_parts<__nv_bfloat16>;
  return launch(kernel, grid_of<32>(shape), kThreads, 0, stream, shape, table, parts, out);
}

cudaError_t launch_row_dots(const PartShape& shape, const HeadRows& x, const HeadRows& y,
                            float* dots, cudaStream_t stream) {
  const auto kernel = shape.element == Element::kF32 ? row_dots<float> : row_dots<__nv_bfloat16>;
  const bool packed =
      in_packs(x, shape.element, shape.width) && in_packs(y, shape.element, shape.width);
  return launch(kernel, grid_of<kDotLanes>(shape), kThreads, 0, stream, shape, x, y, packed, dots);
}

}  // namespace dofla::cuda
