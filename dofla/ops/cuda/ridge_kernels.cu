#include "dofla/ops/cuda/ridge_kernels.h"
#include "dofla/ops/cuda/vector.cuh"

namespace dofla::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

struct Sum {
  static constexpr double kStart = 0;
  __device__ double operator()(double a, double b) const { return a + b; }
};
struct Largest {
  static constexpr double kStart = -1e308;
  __device__ double operator()(double a, double b) const { return fmax(a, b); }
};

// Over all threads of a block, in an order that never changes; every thread gets the result.
template <class Join>
__device__ double over_block(double x, Join join) {
  __shared__ double of_warp[kWarps];
  for (int step = 16; step > 0; step /= 2) x = join(x, __shfl_xor_sync(kWholeWarp, x, step));
  __syncthreads();  // the last call's results have been read
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
  __syncthreads();
  double all = Join::kStart;
  for (int w = 0; w < kWarps; ++w) all = join(all, of_warp[w]);
  return all;
}

__global__ void kernel_rows(RidgeShape s, double factor, const float* __restrict__ samples,
                            double* __restrict__ rows) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x, per_head = s.size * s.width;
  if (i >= s.count * per_head) return;
  const int64_t head = i / per_head, within = i % per_head, given = s.samples * s.width;
  rows[i] = within < given ? factor * double{samples[head * given + within]} : 0;
}

__device__ double square_of(const double* row, int64_t width) {
  double sum = 0;
  for (int64_t d = 0; d < width; ++d) sum += row[d] * row[d];
  return sum;
}

// One block a head. The squares, which are log K(x, x), are computed twice rather than kept.
__global__ void __launch_bounds__(kThreads)
    gram_shifts(RidgeShape s, GramScale scale, const double* __restrict__ rows,
                GramShift* __restrict__ shifts) {
  const double* x = rows + blockIdx.x * s.size * s.width;
  bool finite = true;
  double largest = Largest::kStart;
  for (int64_t j = threadIdx.x; j < s.samples; j += kThreads) {
    const double square = square_of(x + j * s.width, s.width);
    finite = finite && isfinite(square);
    largest = fmax(largest, square);
  }
  finite = __syncthreads_and(finite);
  largest = over_block(largest, Largest());
  double sum = 0;
  for (int64_t j = threadIdx.x; j < s.samples; j += kThreads)
    sum += exp(square_of(x + j * s.width, s.width) - largest);
  const double log_trace = largest + log(over_block(sum, Sum()));
  if (threadIdx.x != 0) return;
  double shift = 0;
  if (scale == GramScale::kTrace) shift = log_trace;
  if (scale == GramScale::kMax) shift = largest;
  if (scale == GramScale::kSamples) shift = log(static_cast<double>(s.samples));
  shifts[blockIdx.x] = {shift, finite ? exp(log_trace - shift) : nan("")};
}

// One block a row and head.
__global__ void ridge_panel(RidgeShape s, const GramShift* __restrict__ shifts, double lambda,
                            int64_t first, int64_t columns, MatrixBatch panel) {
  const int64_t row = first + blockIdx.x;
  const double shift = shifts[blockIdx.y].shift;
  double* at = panel.data + blockIdx.y * panel.distance + blockIdx.x * panel.stride;
  for (int64_t c = threadIdx.x; c < columns; c += blockDim.x) {
    const int64_t column = first + c;
    const bool given = row < s.samples && column < s.samples;
    const double diagonal = row != column ? 0 : given ? lambda : 1;
    at[c] = (given ? exp(at[c] - shift) : 0) + diagonal;
  }
}

// Gauss-Jordan elimination of a positive definite block beside the identity, both in one array: at
// step k, columns up to k hold rows of L⁻¹ in the making, those after it what is left of the block.
// With u the k-th row before the diagonal, 1 on it and the k-th column after it, p the pivot, the
// step is x[i, c] -= u[i] u[c] / p for the rows i > k (x[i, k] counting as 0), and row k of L⁻¹ is
// u/√p. One block a matrix; a thread keeps a tile of 4 × 4 in registers and only u goes through
// shared memory, one barrier a step.
constexpr int kTile = 4, kSide = kRidgeBlock / kTile;
static_assert(kSide * kSide == kThreads);

__global__ void __launch_bounds__(kThreads)
    inverse_factors(MatrixBatch block, MatrixBatch inverse) {
  __shared__ double shared_u[2][kRidgeBlock], shared_pivot[2];
  const int first_row = threadIdx.x / kSide * kTile, first_column = threadIdx.x % kSide * kTile;
  const double* from = block.data + blockIdx.x * block.distance;
  double x[kTile][kTile];
#pragma unroll
  for (int i = 0; i < kTile; ++i)
#pragma unroll
    for (int c = 0; c < kTile; ++c)
      x[i][c] = from[(first_row + i) * block.stride + first_column + c];

  for (int step = 0; step < kRidgeBlock; step += kTile) {
#pragma unroll
    for (int within = 0; within < kTile; ++within) {  // unrolled, so that x stays in registers
      const int k = step + within;
      double* u = shared_u[within % 2];
      double* pivot = &shared_pivot[within % 2];
      if (first_row == step) {
#pragma unroll
        for (int c = 0; c < kTile; ++c)
          if (first_column + c < k) u[first_column + c] = x[within][c];
      }
      if (first_column == step) {
#pragma unroll
        for (int i = 0; i < kTile; ++i) {
          if (first_row + i > k) u[first_row + i] = x[i][within];
          if (first_row + i == k) *pivot = x[i][within], u[k] = 1;
        }
      }
      __syncthreads();  // the other half of the arrays serves the next step
      const double p = *pivot > 0 ? *pivot : nan("");
      const double reciprocal = 1 / p;
#pragma unroll
      for (int i = 0; i < kTile; ++i) {
        const int row = first_row + i;
        const double factor = u[row] * reciprocal;
#pragma unroll
        for (int c = 0; c < kTile; ++c) {
          const int column = first_column + c;
          if (row > k) x[i][c] = (column == k ? 0 : x[i][c]) - factor * u[column];
          if (row == k) x[i][c] = u[column] * rsqrt(p);
        }
      }
    }
  }
  double* to = inverse.data + blockIdx.x * inverse.distance;
#pragma unroll
  for (int i = 0; i < kTile; ++i)
#pragma unroll
    for (int c = 0; c < kTile; ++c) {
      const int row = first_row + i, column = first_column + c;
      to[row * inverse.stride + column] = column <= row ? x[i][c] : 0;
    }
}

// One block a block row and head.
__global__ void __launch_bounds__(kThreads)
    square_sums(RidgeShape s, MatrixBatch matrix, double* __restrict__ sums) {
  const int64_t first = blockIdx.x * int64_t{kRidgeBlock}, columns = first + kRidgeBlock;
  const int64_t last = columns < s.samples ? columns : s.samples;
  const double* x = matrix.data + blockIdx.y * matrix.distance;
  double sum = 0;
  for (int64_t row = first; row < last; ++row)
    for (int64_t c = threadIdx.x; c < columns; c += kThreads) {
      const double value = x[row * matrix.stride + c];
      sum += value * value;
    }
  sum = over_block(sum, Sum());
  if (threadIdx.x == 0) sums[blockIdx.y * int64_t{gridDim.x} + blockIdx.x] = sum;
}

}  // namespace

cudaError_t launch_kernel_rows(const RidgeShape& shape, const float* samples, double* rows,
                               cudaStream_t stream) {
  const double factor = pow(static_cast<double>(shape.width), -0.25);
  const int64_t threads = shape.count * shape.size * shape.width;
  kernel_rows<<<blocks_for(threads, kThreads), kThreads, 0, stream>>>(shape, factor, samples, rows);
  return cudaGetLastError();
}

cudaError_t launch_gram_shifts(const RidgeShape& shape, GramScale scale, const double* rows,
                               GramShift* shifts, cudaStream_t stream) {
  gram_shifts<<<static_cast<unsigned>(shape.count), kThreads, 0, stream>>>(shape, scale, rows,
                                                                           shifts);
  return cudaGetLastError();
}

cudaError_t launch_ridge_panel(const RidgeShape& shape, const GramShift* shifts, double lambda,
                               int64_t first, int64_t columns, const MatrixBatch& panel,
                               cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(shape.size - first), static_cast<unsigned>(shape.count));
  ridge_panel<<<grid, kThreads, 0, stream>>>(shape, shifts, lambda, first, columns, panel);
  return cudaGetLastError();
}

cudaError_t launch_inverse_factors(int64_t count, const MatrixBatch& block,
                                   const MatrixBatch& inverse, cudaStream_t stream) {
  inverse_factors<<<static_cast<unsigned>(count), kThreads, 0, stream>>>(block, inverse);
  return cudaGetLastError();
}

cudaError_t launch_square_sums(const RidgeShape& shape, const MatrixBatch& matrix, double* sums,
                               cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(shape.size / kRidgeBlock),
                  static_cast<unsigned>(shape.count));
  square_sums<<<grid, kThreads, 0, stream>>>(shape, matrix, sums);
  return cudaGetLastError();
}

}  // namespace dofla::cuda
