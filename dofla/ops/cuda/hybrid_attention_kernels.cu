// As many threads take a row of a head as it has packs of 16 bytes.
#include "dofla/ops/cuda/head_rows.cuh"
#include "dofla/ops/cuda/hybrid_attention_kernels.h"

namespace dofla::cuda {
namespace {

constexpr int kThreads = 256;
template <class T, int kWidth>
constexpr int kLanes = kWidth / Pack<T>::kSize;

struct MergeArguments {
  MergeShape shape;
  float half_inverse_root;
  bool packed;
};

// Row r of what has left is that of a token. A block has rows of one head of one sequence.
template <class T, int kWidth>
struct RowPart {
  using Values = Pack<T>;
  const MergeArguments& a;
  int64_t r, token;
  int64_t left, both;  // where its log sums are
  int column;          // the first of this thread
  bool exists;         // whether it has a query

  __device__ explicit RowPart(const MergeArguments& arguments)
      : a(arguments),
        r(blockIdx.x * (kThreads / kLanes<T, kWidth>)+threadIdx.x / kLanes<T, kWidth>),
        column(threadIdx.x % kLanes<T, kWidth> * Values::kSize) {
    const MergeShape& s = a.shape;
    token = s.first[blockIdx.y /
                    (static_cast<unsigned>(s.heads) / static_cast<unsigned>(s.key_heads))] +
            r;
    const int64_t head = blockIdx.z * s.heads + blockIdx.y;
    left = head * s.left_rows + r;
    both = head * s.tokens + token;
    exists = r < s.left_rows && token < s.tokens;
  }

  __device__ bool first_lane() const { return column == 0; }
  // This thread's part of row `row`, 0 where there is none.
  __device__ Values load(const HeadRows& rows, int64_t row) const {
    Values part = {};
    const int width = static_cast<int>(a.shape.width);
    if (!exists || column >= width) return part;
    const T* from = head_of<T>(rows, blockIdx.z, blockIdx.y) + row * rows.token_step + column;
    if (a.packed) return load_pack(from);
#pragma unroll
    for (int i = 0; i < Values::kSize; ++i)
      if (column + i < width) part.values[i] = to_float(from[i]);
    return part;
  }
  __device__ void store(const Values& part, const HeadRowsOut& rows) const {
    const int width = static_cast<int>(a.shape.width);
    if (!exists || column >= width) return;
    T* to = head_of<T>(rows, blockIdx.z, blockIdx.y) + token * rows.token_step + column;
    if (a.packed) return store_pack(part, to);
#pragma unroll
    for (int i = 0; i < Values::kSize; ++i)
      if (column + i < width) to[i] = from_float<T>(part.values[i]);
  }
  // Of whole rows; all threads of a warp come here.
  __device__ float dot(const Values& x, const Values& y) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < Values::kSize; ++i) sum = fmaf(x.values[i], y.values[i], sum);
#pragma unroll
    for (int step = kLanes<T, kWidth> / 2; step > 0; step /= 2)
      sum += __shfl_xor_sync(kWholeWarp, sum, step);
    return sum;
  }
};

HeadRows readable(const HeadRowsOut& rows) {
  return {rows.data, rows.batch_step, rows.head_step, rows.token_step};
}

// `held` are the rows of `out` as they come.
template <class T, int kWidth>
__global__ void merge_left(const __grid_constant__ MergeArguments a, HeadRows q, HeadRows left_out,
                           const float* left_log_sum, HeadRows held, HeadRowsOut out,
                           float* log_sum) {
  const RowPart<T, kWidth> at(a);
  const Pack<T> x = at.load(q, at.token), more = at.load(left_out, at.r);
  Pack<T> sum = at.load(held, at.token);
  const float norm = at.dot(x, x) * a.half_inverse_root;
  float both = 0;
  if (at.exists) {
    const float left = left_log_sum[at.left] - norm;
    const float log = log_sum[at.both], top = fmaxf(left, log);
    both = top + logf(expf(left - top) + expf(log - top));
    const float of_held = expf(log - both), of_left = expf(left - both);
#pragma unroll
    for (int i = 0; i < Pack<T>::kSize; ++i)
      sum.values[i] = of_held * sum.values[i] + of_left * more.values[i];
    at.store(sum, out);
  }
  __syncwarp();  // all threads of the row have read the old one
  if (at.exists && at.first_lane()) log_sum[at.both] = both;
}

// `sums` are the rows of `grad_q` as they come.
template <class T, int kWidth>
__global__ void merge_left_backward(const __grid_constant__ MergeArguments a, HeadRows q,
                                    HeadRows left_out, HeadRows out, const float* log_sum,
                                    HeadRows grad_out, float* left_log_sum, HeadRows sums,
                                    HeadRowsOut grad_q) {
  const RowPart<T, kWidth> at(a);
  const Pack<T> x = at.load(q, at.token), g = at.load(grad_out, at.token);
  Pack<T> sum = at.load(sums, at.token);
  const float norm = at.dot(x, x) * a.half_inverse_root;
  const float change = at.dot(g, at.load(left_out, at.r)) - at.dot(g, at.load(out, at.token));
  float log_for_left = 0;
  if (at.exists) {
    const float both = log_sum[at.both];
    const float share = expf(left_log_sum[at.left] - norm - both);
    const float factor = 2 * a.half_inverse_root * share * change;
#pragma unroll
    for (int i = 0; i < Pack<T>::kSize; ++i) sum.values[i] = sum.values[i] - factor * x.values[i];
    at.store(sum, grad_q);
    log_for_left = both + norm;
  }
  __syncwarp();  // as above
  if (at.r < a.shape.left_rows && at.first_lane()) left_log_sum[at.left] = log_for_left;
}

bool valid(const MergeShape& s) {
  if (s.width < 1 || s.width > kWidestHead || s.key_heads < 1 || s.key_heads > kMostKeyHeads ||
      s.heads % s.key_heads != 0)
    return false;
  for (int64_t h = 0; h < s.key_heads; ++h)
    if (s.first[h] < 0 || s.left_rows < s.tokens - s.first[h]) return false;
  return true;
}

// Calls launch(arguments, type, width, grid) for the rows of what has left.
template <class Launch>
cudaError_t with_rows(const MergeShape& s, bool packed, const Launch& launch) {
  if (!valid(s)) return cudaErrorInvalidValue;
  if (s.batch * s.heads * s.left_rows == 0) return cudaSuccess;
  const MergeArguments arguments = {
      s, static_cast<float>(0.5 / std::sqrt(static_cast<double>(s.width))), packed};
  return with_width(s.width, [&](auto width) {
    return with_type(s.element, [&](auto zero) {
      constexpr int kRowLanes = kLanes<decltype(zero), decltype(width)::value>;
      launch(arguments, zero, width,
             dim3(blocks_for(s.left_rows, kThreads / kRowLanes), static_cast<unsigned>(s.heads),
                  static_cast<unsigned>(s.batch)));
    });
  });
}

}  // namespace

cudaError_t launch_merge_left(const MergeShape& s, const HeadRows& q, const HeadRows& left_out,
                              const float* left_log_sum, const HeadRowsOut& out, float* log_sum,
                              cudaStream_t stream) {
  const bool packed = in_packs(q, s.element, s.width) && in_packs(left_out, s.element, s.width) &&
                      in_packs(out, s.element, s.width);
  return with_rows(s, packed, [&](const MergeArguments& a, auto zero, auto width, dim3 grid) {
    merge_left<decltype(zero), decltype(width)::value>
        <<<grid, kThreads, 0, stream>>>(a, q, left_out, left_log_sum, readable(out), out, log_sum);
  });
}

cudaError_t launch_merge_left_backward(const MergeShape& s, const HeadRows& q,
                                       const HeadRows& left_out, const HeadRows& out,
                                       const float* log_sum, const HeadRows& grad_out,
                                       float* left_log_sum, const HeadRowsOut& grad_q,
                                       cudaStream_t stream) {
  const bool packed = in_packs(q, s.element, s.width) && in_packs(left_out, s.element, s.width) &&
                      in_packs(out, s.element, s.width) && in_packs(grad_out, s.element, s.width) &&
                      in_packs(grad_q, s.element, s.width);
  return with_rows(s, packed, [&](const MergeArguments& a, auto zero, auto width, dim3 grid) {
    merge_left_backward<decltype(zero), decltype(width)::value><<<grid, kThreads, 0, stream>>>(
        a, q, left_out, out, log_sum, grad_out, left_log_sum, readable(grad_q), grad_q);
  });
}

}  // namespace dofla::cuda
