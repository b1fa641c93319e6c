#include "dofla/ops/cuda/norm_kernels.h"
#include "dofla/ops/cuda/vector.cuh"

namespace dofla::cuda {
namespace {

constexpr int kWarps = 8;  // rows of a block

struct RowStatistics {
  float mean, scale;  // (x − mean) · scale is the normalised row
};

// Calls body(first, values) for every pack of a row; a row whose width or place does not suit packs
// goes element by element.
template <class T, bool kPacked, class Body>
__device__ void for_each_pack(const T* row, int64_t width, const Body& body) {
  const int lane = threadIdx.x % 32;
  if constexpr (kPacked) {
    for (int64_t i = lane * Pack<T>::kSize; i < width; i += 32 * Pack<T>::kSize) {
      const Pack<T> pack = load_pack(row + i);
#pragma unroll
      for (int j = 0; j < Pack<T>::kSize; ++j) body(i + j, pack.values[j]);
    }
  } else {
    for (int64_t i = lane; i < width; i += 32) body(i, to_float(row[i]));
  }
}

template <class T, bool kPacked>
__device__ RowStatistics statistics(const T* row, int64_t width, float epsilon, bool centre) {
  float mean = 0;
  if (centre) {
    for_each_pack<T, kPacked>(row, width, [&](int64_t, float x) { mean += x; });
    mean = warp_sum(mean) / static_cast<float>(width);
  }
  float squares = 0;
  for_each_pack<T, kPacked>(row, width,
                            [&](int64_t, float x) { squares += (x - mean) * (x - mean); });
  return {mean, rsqrtf(warp_sum(squares) / static_cast<float>(width) + epsilon)};
}

template <class T, bool kPacked>
__global__ void norm_rows(NormArguments a, const float* __restrict__ bias, T* __restrict__ y) {
  const int64_t r = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32;
  if (r >= a.rows) return;
  const T* row = static_cast<const T*>(a.x) + r * a.width;
  const RowStatistics s = statistics<T, kPacked>(row, a.width, a.epsilon, a.centre);
  const auto normalised = [&](int64_t i, float x) {
    return fmaf((x - s.mean) * s.scale, a.weight[i], bias == nullptr ? 0.0f : bias[i]);
  };
  T* out = y + r * a.width;
  if constexpr (kPacked) {
    for (int64_t i = threadIdx.x % 32 * Pack<T>::kSize; i < a.width; i += 32 * Pack<T>::kSize) {
      Pack<T> pack = load_pack(row + i);
#pragma unroll
      for (int j = 0; j < Pack<T>::kSize; ++j) pack.values[j] = normalised(i + j, pack.values[j]);
      store_pack(pack, out + i);
    }
  } else {
    for (int64_t i = threadIdx.x % 32; i < a.width; i += 32)
      out[i] = from_float<T>(normalised(i, to_float(row[i])));
  }
}

// With x̂ the normalised row and g = grad_y · weight,
//   grad_x = scale · (g − mean(g) − x̂ · mean(g x̂)), without mean(g) for an RMS norm.
template <class T>
__global__ void norm_rows_backward(NormArguments a, const T* __restrict__ grad_y,
                                   T* __restrict__ grad_x, float* __restrict__ row_statistics) {
  const int64_t r = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32;
  if (r >= a.rows) return;
  const T* row = static_cast<const T*>(a.x) + r * a.width;
  const T* gradient = grad_y + r * a.width;
  const RowStatistics s = statistics<T, false>(row, a.width, a.epsilon, a.centre);
  if (threadIdx.x % 32 == 0) {
    row_statistics[2 * r] = s.mean;
    row_statistics[2 * r + 1] = s.scale;
  }
  float sum = 0, along = 0;
  for (int64_t i = threadIdx.x % 32; i < a.width; i += 32) {
    const float g = to_float(gradient[i]) * a.weight[i];
    sum += g;
    along += g * (to_float(row[i]) - s.mean) * s.scale;
  }
  const float mean_g = a.centre ? warp_sum(sum) / static_cast<float>(a.width) : 0;
  const float mean_along = warp_sum(along) / static_cast<float>(a.width);
  for (int64_t i = threadIdx.x % 32; i < a.width; i += 32) {
    const float g = to_float(gradient[i]) * a.weight[i];
    const float unit = (to_float(row[i]) - s.mean) * s.scale;
    grad_x[r * a.width + i] = from_float<T>(s.scale * (g - mean_g - unit * mean_along));
  }
}

// A block takes 32 columns; its warps take rows in turn, and their sums are joined in order.
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

cudaError_t launch_norm(const NormArguments& arguments, const float* bias, void* y,
                        cudaStream_t stream) {
  return with_type(arguments.element, [&](auto zero) {
    using T = decltype(zero);
    const unsigned blocks = blocks_for(arguments.rows, kWarps);
    const bool packed = arguments.width % Pack<T>::kSize == 0 && aligned_to_packs(arguments.x, y);
    if (blocks == 0) return;
    if (packed)
      norm_rows<T, true><<<blocks, 32 * kWarps, 0, stream>>>(arguments, bias, static_cast<T*>(y));
    else
      norm_rows<T, false><<<blocks, 32 * kWarps, 0, stream>>>(arguments, bias, static_cast<T*>(y));
  });
}

cudaError_t launch_norm_backward(const NormArguments& arguments, const void* grad_y, void* grad_x,
                                 float* statistics, cudaStream_t stream) {
  return with_type(arguments.element, [&](auto zero) {
    using T = decltype(zero);
    const unsigned blocks = blocks_for(arguments.rows, kWarps);
    if (blocks > 0)
      norm_rows_backward<T><<<blocks, 32 * kWarps, 0, stream>>>(
          arguments, static_cast<const T*>(grad_y), static_cast<T*>(grad_x), statistics);
  });
}

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
