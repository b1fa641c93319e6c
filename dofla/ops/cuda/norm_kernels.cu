#include "dofla/ops/cuda/norm_kernels.h"
#include "dofla/ops/cuda/vector.cuh"

namespace dofla::cuda {
namespace {

constexpr int kWarps = 8;  // rows of a block

struct RowStatistics {
  float mean, scale;  // (x − mean) · scale is the normalised row
};

// A row that a warp keeps in registers, at most kMost packs a lane: read from memory once.
template <class T, int kMost>
struct NearRow {
  static constexpr int kSize = Pack<T>::kSize;
  Pack<T> packs[kMost];

  static __device__ int64_t first(int i) { return (i * 32 + threadIdx.x % 32) * int64_t{kSize}; }

  __device__ void load(const T* row, int64_t width) {
#pragma unroll
    for (int i = 0; i < kMost; ++i)
      if (first(i) < width) packs[i] = load_pack(row + first(i));
  }
  // Σ f(i, x_i, y_i) with y another row of the same width; the same in every lane.
  template <class F>
  __device__ float sum(const NearRow& y, int64_t width, const F& f) const {
    float total = 0;
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      if (first(i) >= width) continue;
#pragma unroll
      for (int j = 0; j < kSize; ++j)
        total += f(first(i) + j, packs[i].values[j], y.packs[i].values[j]);
    }
    return warp_sum(total);
  }
  // to_i = f(i, x_i, y_i)
  template <class F>
  __device__ void write(const NearRow& y, int64_t width, T* to, const F& f) const {
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      if (first(i) >= width) continue;
      Pack<T> out;
#pragma unroll
      for (int j = 0; j < kSize; ++j)
        out.values[j] = f(first(i) + j, packs[i].values[j], y.packs[i].values[j]);
      store_pack(out, to + first(i));
    }
  }
};

// A row of any width at any place, read again for every use.
template <class T>
struct FarRow {
  const T* row;

  __device__ void load(const T* from, int64_t) { row = from; }
  template <class F>
  __device__ float sum(const FarRow& y, int64_t width, const F& f) const {
    float total = 0;
    for (int64_t i = threadIdx.x % 32; i < width; i += 32)
      total += f(i, to_float(row[i]), to_float(y.row[i]));
    return warp_sum(total);
  }
  template <class F>
  __device__ void write(const FarRow& y, int64_t width, T* to, const F& f) const {
    for (int64_t i = threadIdx.x % 32; i < width; i += 32)
      to[i] = from_float<T>(f(i, to_float(row[i]), to_float(y.row[i])));
  }
};

// Calls launch(row type) with the kind of row that suits.
template <class T, class Launch>
void with_row(int64_t width, bool aligned, const Launch& launch) {
  const int64_t packs = (width + 32 * Pack<T>::kSize - 1) / (32 * Pack<T>::kSize);
  if (!aligned || width % Pack<T>::kSize != 0 || packs > 16)
    launch(FarRow<T>{});
  else if (packs <= 4)
    launch(NearRow<T, 4>{});
  else if (packs <= 8)
    launch(NearRow<T, 8>{});
  else
    launch(NearRow<T, 16>{});
}

template <class Row>
__device__ RowStatistics statistics(const Row& row, const NormArguments& a) {
  const float share = 1 / static_cast<float>(a.width);
  const float mean =
      a.centre ? share * row.sum(row, a.width, [](int64_t, float x, float) { return x; }) : 0.0f;
  const float square = share * row.sum(row, a.width, [&](int64_t, float x, float) {
    return (x - mean) * (x - mean);
  });
  return {mean, rsqrtf(square + a.epsilon)};
}

template <class T, class Row>
__global__ void norm_rows(NormArguments a, const float* __restrict__ bias, T* __restrict__ y) {
  const int64_t r = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32;
  if (r >= a.rows) return;
  Row row;
  row.load(static_cast<const T*>(a.x) + r * a.width, a.width);
  const RowStatistics s = statistics(row, a);
  row.write(row, a.width, y + r * a.width, [&](int64_t i, float x, float) {
    return fmaf((x - s.mean) * s.scale, a.weight[i], bias == nullptr ? 0.0f : bias[i]);
  });
}

// With x̂ the normalised row and g = grad_y · weight,
//   grad_x = scale · (g − mean(g) − x̂ · mean(g x̂)), without mean(g) for an RMS norm.
template <class T, class Row>
__global__ void norm_rows_backward(NormArguments a, const T* __restrict__ grad_y,
                                   T* __restrict__ grad_x, float* __restrict__ row_statistics) {
  const int64_t r = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32;
  if (r >= a.rows) return;
  Row row, gradient;
  row.load(static_cast<const T*>(a.x) + r * a.width, a.width);
  gradient.load(grad_y + r * a.width, a.width);
  const RowStatistics s = statistics(row, a);
  if (threadIdx.x % 32 == 0) {
    row_statistics[2 * r] = s.mean;
    row_statistics[2 * r + 1] = s.scale;
  }
  const float share = 1 / static_cast<float>(a.width);
  const float mean_g =
      a.centre ? share * row.sum(gradient, a.width,
                                 [&](int64_t i, float, float g) { return g * a.weight[i]; })
               : 0.0f;
  const float mean_along = share * row.sum(gradient, a.width, [&](int64_t i, float x, float g) {
    return g * a.weight[i] * (x - s.mean) * s.scale;
  });
  row.write(gradient, a.width, grad_x + r * a.width, [&](int64_t i, float x, float g) {
    return s.scale * (g * a.weight[i] - mean_g - (x - s.mean) * s.scale * mean_along);
  });
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
    if (blocks == 0) return;
    with_row<T>(arguments.width, aligned_to_packs(arguments.x, y), [&](auto row) {
      norm_rows<T, decltype(row)>
          <<<blocks, 32 * kWarps, 0, stream>>>(arguments, bias, static_cast<T*>(y));
    });
  });
}

cudaError_t launch_norm_backward(const NormArguments& arguments, const void* grad_y, void* grad_x,
                                 float* statistics, cudaStream_t stream) {
  return with_type(arguments.element, [&](auto zero) {
    using T = decltype(zero);
    const unsigned blocks = blocks_for(arguments.rows, kWarps);
    if (blocks == 0) return;
    with_row<T>(arguments.width, aligned_to_packs(arguments.x, grad_y, grad_x), [&](auto row) {
      norm_rows_backward<T, decltype(row)><<<blocks, 32 * kWarps, 0, stream>>>(
          arguments, static_cast<const T*>(grad_y), static_cast<T*>(grad_x), statistics);
    });
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
