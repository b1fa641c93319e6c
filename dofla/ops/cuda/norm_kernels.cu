#include "dofla/ops/cuda/launch.cuh"
#include "dofla/ops/cuda/norm_kernels.h"
#include "dofla/ops/cuda/vector.cuh"

namespace dofla::cuda {
namespace {

constexpr int kWarps = 8;  // of a block, each with a row

// Rows of a warp, each lane with its own elements. A near row is kept in registers, at most kMost
// packs a lane, and may be of any width that is a multiple of a pack.
template <class T, int kMost>
struct NearRow {
  static constexpr int kSize = Pack<T>::kSize;
  static constexpr int kSharedBytes = 0;  // an element
  Pack<T> packs[kMost];

  __device__ explicit NearRow(float*) {}

  // f(pack, its first element) for this lane's packs.
  template <class F>
  __device__ void for_each(int64_t width, const F& f) {
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      const int64_t first = (i * 32 + threadIdx.x % 32) * int64_t{kSize};
      if (first < width) f(packs[i].values, first, i);
    }
  }
  __device__ void load(const T* row, int64_t width) {
    for_each(width,
             [&](float(&)[kSize], int64_t first, int i) { packs[i] = load_pack(row + first); });
  }
  __device__ void store(T* row, int64_t width) {
    for_each(width,
             [&](float(&)[kSize], int64_t first, int i) { store_pack(packs[i], row + first); });
  }
  // x_i = f(x_i, weight_i, bias_i); without a bias that is 0.
  template <class F>
  __device__ void update(const float* weight, const float* bias, int64_t width, const F& f) {
    for_each(width, [&](float(&x)[kSize], int64_t first, int) {
      Pack<float> w, b = {};
#pragma unroll
      for (int j = 0; j < kSize; j += 4) {
        w = load_pack(weight + first + j);
        if (bias != nullptr) b = load_pack(bias + first + j);
#pragma unroll
        for (int k = 0; k < 4; ++k) x[j + k] = f(x[j + k], w.values[k], b.values[k]);
      }
    });
  }
  // Σ f(x_i), the same in every lane.
  template <class F>
  __device__ float sum(int64_t width, const F& f) {
    float total = 0;
    for_each(width, [&](float(&x)[kSize], int64_t, int) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) total += f(x[j]);
    });
    return warp_sum(total);
  }
};

// A row of any width at any place: in shared memory, element by element.
template <class T>
struct FarRow {
  static constexpr int kSharedBytes = sizeof(float);
  float* values;

  __device__ explicit FarRow(float* shared) : values(shared) {}

  template <class F>
  __device__ static void for_each(int64_t width, const F& f) {
    for (int64_t i = threadIdx.x % 32; i < width; i += 32) f(i);
  }
  __device__ void load(const T* row, int64_t width) {
    for_each(width, [&](int64_t i) { values[i] = to_float(row[i]); });
  }
  __device__ void store(T* row, int64_t width) const {
    for_each(width, [&](int64_t i) { row[i] = from_float<T>(values[i]); });
  }
  template <class F>
  __device__ void update(const float* weight, const float* bias, int64_t width, const F& f) {
    for_each(width, [&](int64_t i) {
      values[i] = f(values[i], weight[i], bias == nullptr ? 0.0f : bias[i]);
    });
  }
  template <class F>
  __device__ float sum(int64_t width, const F& f) const {
    float total = 0;
    for_each(width, [&](int64_t i) { total += f(values[i]); });
    return warp_sum(total);
  }
};

// The shared memory of this warp's row, where its kind of row needs any.
__device__ float* shared_row(int64_t width) {
  extern __shared__ float shared[];
  return shared + threadIdx.x / 32 * width;
}

struct RowStatistics {
  float mean, scale;  // (x − mean) · scale is the normalised row
};

template <class Row>
__device__ RowStatistics statistics(Row& row, const NormArguments& a) {
  const float share = 1 / static_cast<float>(a.width);
  const float mean = a.centre ? share * row.sum(a.width, [](float x) { return x; }) : 0.0f;
  const float square = share * row.sum(a.width, [&](float x) { return (x - mean) * (x - mean); });
  return {mean, rsqrtf(square + a.epsilon)};
}

template <class T, class Row>
__global__ void norm_rows(NormArguments a, const float* __restrict__ bias, T* __restrict__ y) {
  const int64_t r = blockIdx.x * int64_t{blockDim.x / 32} + threadIdx.x / 32;
  if (r >= a.rows) return;
  Row row(shared_row(a.width));
  row.load(static_cast<const T*>(a.x) + r * a.width, a.width);
  const RowStatistics s = statistics(row, a);
  row.update(a.weight, bias, a.width,
             [&](float x, float w, float b) { return fmaf((x - s.mean) * s.scale, w, b); });
  row.store(y + r * a.width, a.width);
}

template <class Row>
struct KindOfRow {
  using Type = Row;
};

// Calls go(kind of row) with the kind that suits.
template <class T, class Go>
void with_row(int64_t width, bool aligned, const Go& go) {
  const int64_t packs = (width + 32 * Pack<T>::kSize - 1) / (32 * Pack<T>::kSize);
  if (!aligned || width % Pack<T>::kSize != 0 || packs > 16)
    go(KindOfRow<FarRow<T>>{});
  else if (packs <= 4)
    go(KindOfRow<NearRow<T, 4>>{});
  else if (packs <= 8)
    go(KindOfRow<NearRow<T, 8>>{});
  else
    go(KindOfRow<NearRow<T, 16>>{});
}

}  // namespace

cudaError_t launch_norm(const NormArguments& arguments, const float* bias, void* y,
                        cudaStream_t stream) {
  return with_type(arguments.element, [&](auto zero) {
    using T = decltype(zero);
    const bool aligned =
        aligned_to_packs(arguments.x, y) && aligned_to_packs(arguments.weight, bias);
    with_row<T>(arguments.width, aligned, [&](auto kind) {
      using Row = typename decltype(kind)::Type;
      constexpr int64_t kMostShared = 48 * 1024;  // unless one warp needs more
      const int64_t bytes = Row::kSharedBytes * arguments.width;
      int warps = kWarps;
      while (warps > 1 && warps * bytes > kMostShared) warps /= 2;
      launch(norm_rows<T, Row>, dim3(blocks_for(arguments.rows, warps)), 32 * warps,
             static_cast<size_t>(warps * bytes), stream, arguments, bias, static_cast<T*>(y));
    });
  });
}

}  // namespace dofla::cuda
