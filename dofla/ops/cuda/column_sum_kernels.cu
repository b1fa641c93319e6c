// Sums over rows, column by column: the gradients of a norm's weights and of biases.
#include "dofla/ops/cuda/norm_kernels.h"
#include "dofla/ops/cuda/vector.cuh"

namespace dofla::cuda {
namespace {

// A block has 32 columns; its warps alternate over the rows, and their sums are added in order.
constexpr int kColumnWarps = 32;

template <class F>
__device__ void add_to_columns(int64_t rows, int64_t column, bool inside, const F& value,
                               float* to) {
  __shared__ float parts[kColumnWarps][33];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float sum = 0;
  for (int64_t r = warp; inside && r < rows; r += kColumnWarps) sum += value(r);
  __syncthreads();  // the parts of an earlier sum may still be read
  parts[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || !inside) return;
  float total = 0;
  for (int w = 0; w < kColumnWarps; ++w) total += parts[w][lane];
  to[column] += total;
}

template <class T>
__global__ void norm_columns_backward(NormArguments a, const T* __restrict__ grad_y,
                                      const float* __restrict__ statistics,
                                      float* __restrict__ grad_weight,
                                      float* __restrict__ grad_bias) {
  const int64_t column = blockIdx.x * int64_t{32} + threadIdx.x % 32;
  const bool inside = column < a.width;
  const T* x = static_cast<const T*>(a.x);
  if (grad_weight != nullptr)
    add_to_columns(
        a.rows, column, inside,
        [&](int64_t r) {
          const int64_t i = r * a.width + column;
          return to_float(grad_y[i]) * (to_float(x[i]) - statistics[2 * r]) * statistics[2 * r + 1];
        },
        grad_weight);
  if (grad_bias != nullptr)
    add_to_columns(
        a.rows, column, inside, [&](int64_t r) { return to_float(grad_y[r * a.width + column]); },
        grad_bias);
}

template <class T>
__global__ void sum_columns(const T* __restrict__ x, int64_t rows, int64_t columns,
                            float* __restrict__ sums) {
  const int64_t column = blockIdx.x * int64_t{32} + threadIdx.x % 32;
  add_to_columns(
      rows, column, column < columns, [&](int64_t r) { return to_float(x[r * columns + column]); },
      sums);
}

}  // namespace

cudaError_t launch_norm_weight_backward(const NormArguments& arguments, const void* grad_y,
                                        const float* statistics, float* grad_weight,
                                        float* grad_bias, cudaStream_t stream) {
  return with_type(arguments.element, [&](auto zero) {
    using T = decltype(zero);
    norm_columns_backward<T><<<blocks_for(arguments.width, 32), 32 * kColumnWarps, 0, stream>>>(
        arguments, static_cast<const T*>(grad_y), statistics, grad_weight, grad_bias);
  });
}

cudaError_t launch_add_column_sums(Element element, const void* x, int64_t rows, int64_t columns,
                                   float* sums, cudaStream_t stream) {
  return with_type(element, [&](auto zero) {
    using T = decltype(zero);
    sum_columns<<<blocks_for(columns, 32), 32 * kColumnWarps, 0, stream>>>(static_cast<const T*>(x),
                                                                           rows, columns, sums);
  });
}

}  // namespace dofla::cuda
