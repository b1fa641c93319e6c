// A warp takes a row of a head.
#include "dofla/ops/cuda/head_rows.cuh"
#include "dofla/ops/cuda/hybrid_attention_kernels.h"

namespace dofla::cuda {
namespace {

constexpr int kThreads = 256, kRows = kThreads / 32;

struct RowPlace {
  int64_t b, h, r, token;  // row r of what has left is that of a token
  int64_t left, both;      // where its log sums are
  bool exists;             // whether it has a query
};

__device__ __forceinline__ RowPlace row_place(const MergeShape& s, int64_t row) {
  const int64_t head = row / s.left_rows, h = head % s.heads, r = row % s.left_rows;
  const int64_t token = s.first[h / (s.heads / s.key_heads)] + r;
  return {head / s.heads, h, r, token, row, head * s.tokens + token, token < s.tokens};
}

// Row `token` of a head, as floats of a lane: d = lane, lane + 32, …
constexpr int kEach = kWidestHead / 32;
struct LaneRow {
  float x[kEach];
};
template <class T>
__device__ __forceinline__ LaneRow lane_row(const HeadRows& rows, const RowPlace& at, int64_t token,
                                            int64_t width) {
  const T* row = head_of<T>(rows, at.b, at.h) + token * rows.token_step;
  LaneRow lanes;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int d = threadIdx.x % 32 + 32 * i;
    lanes.x[i] = d < width ? to_float(row[d]) : 0.0f;
  }
  return lanes;
}

__device__ __forceinline__ float row_dot(const LaneRow& x, const LaneRow& y) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) sum = fmaf(x.x[i], y.x[i], sum);
  return warp_sum(sum);
}

// Replaces the elements of a row by change(i, element), where a lane's i-th is at lane + 32 i.
template <class T, class Change>
__device__ __forceinline__ void change_row(const HeadRowsOut& rows, const RowPlace& at,
                                           int64_t token, int64_t width, const Change& change) {
  T* row = head_of<T>(rows, at.b, at.h) + token * rows.token_step;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int d = threadIdx.x % 32 + 32 * i;
    if (d < width) row[d] = from_float<T>(change(i, to_float(row[d])));
  }
}

template <class T>
__global__ void merge_left(const __grid_constant__ MergeShape s, float half_inverse_root,
                           HeadRows q, HeadRows left_out, const float* left_log_sum,
                           HeadRowsOut out, float* log_sum, int64_t rows) {
  const int64_t row = blockIdx.x * int64_t{kRows} + threadIdx.x / 32;
  if (row >= rows) return;
  const RowPlace at = row_place(s, row);
  if (!at.exists) return;
  const LaneRow x = lane_row<T>(q, at, at.token, s.width);
  const float left = left_log_sum[at.left] - row_dot(x, x) * half_inverse_root;
  const float log = log_sum[at.both], top = fmaxf(left, log);
  const float both = top + logf(expf(left - top) + expf(log - top));
  const float of_held = expf(log - both), of_left = expf(left - both);
  const LaneRow more = lane_row<T>(left_out, at, at.r, s.width);
  change_row<T>(out, at, at.token, s.width,
                [&](int i, float held) { return of_held * held + of_left * more.x[i]; });
  __syncwarp();  // all lanes have read the old one
  if (threadIdx.x % 32 == 0) log_sum[at.both] = both;
}

template <class T>
__global__ void merge_left_backward(const __grid_constant__ MergeShape s, float half_inverse_root,
                                    HeadRows q, HeadRows left_out, HeadRows out,
                                    const float* log_sum, HeadRows grad_out, float* left_log_sum,
                                    HeadRowsOut grad_q, int64_t rows) {
  const int64_t row = blockIdx.x * int64_t{kRows} + threadIdx.x / 32;
  if (row >= rows) return;
  const RowPlace at = row_place(s, row);
  float log_for_left = 0;
  if (at.exists) {
    const LaneRow x = lane_row<T>(q, at, at.token, s.width);
    const LaneRow g = lane_row<T>(grad_out, at, at.token, s.width);
    const float norm = row_dot(x, x) * half_inverse_root, both = log_sum[at.both];
    const float change = row_dot(g, lane_row<T>(left_out, at, at.r, s.width)) -
                         row_dot(g, lane_row<T>(out, at, at.token, s.width));
    const float share = expf(left_log_sum[at.left] - norm - both);
    const float factor = 2 * half_inverse_root * share * change;
    change_row<T>(grad_q, at, at.token, s.width,
                  [&](int i, float sum) { return sum - factor * x.x[i]; });
    log_for_left = both + norm;
  }
  __syncwarp();
  if (threadIdx.x % 32 == 0) left_log_sum[at.left] = log_for_left;
}

bool valid(const MergeShape& s) {
  if (s.width < 1 || s.width > kWidestHead || s.key_heads < 1 || s.key_heads > kMostKeyHeads ||
      s.heads % s.key_heads != 0)
    return false;
  for (int64_t h = 0; h < s.key_heads; ++h)
    if (s.first[h] < 0 || s.left_rows < s.tokens - s.first[h]) return false;
  return true;
}

float half_inverse_root(const MergeShape& s) {
  return static_cast<float>(0.5 / std::sqrt(static_cast<double>(s.width)));
}

}  // namespace

cudaError_t launch_merge_left(const MergeShape& s, const HeadRows& q, const HeadRows& left_out,
                              const float* left_log_sum, const HeadRowsOut& out, float* log_sum,
                              cudaStream_t stream) {
  if (!valid(s)) return cudaErrorInvalidValue;
  const int64_t rows = s.batch * s.heads * s.left_rows;
  if (rows == 0) return cudaSuccess;
  return with_type(s.element, [&](auto zero) {
    merge_left<decltype(zero)><<<blocks_for(rows, kRows), kThreads, 0, stream>>>(
        s, half_inverse_root(s), q, left_out, left_log_sum, out, log_sum, rows);
  });
}

cudaError_t launch_merge_left_backward(const MergeShape& s, const HeadRows& q,
                                       const HeadRows& left_out, const HeadRows& out,
                                       const float* log_sum, const HeadRows& grad_out,
                                       float* left_log_sum, const HeadRowsOut& grad_q,
                                       cudaStream_t stream) {
  if (!valid(s)) return cudaErrorInvalidValue;
  const int64_t rows = s.batch * s.heads * s.left_rows;
  if (rows == 0) return cudaSuccess;
  return with_type(s.element, [&](auto zero) {
    merge_left_backward<decltype(zero)><<<blocks_for(rows, kRows), kThreads, 0, stream>>>(
        s, half_inverse_root(s), q, left_out, out, log_sum, grad_out, left_log_sum, grad_q, rows);
  });
}

}  // namespace dofla::cuda
