// With x̂ = (x − mean) · scale the normalised row and g = grad_y · weight,
//   grad_x = scale · (g − mean(g) − x̂ · mean(g x̂)), without the means of x and g for an RMS norm;
//   grad_weight = Σ_rows grad_y x̂,  grad_bias = Σ_rows grad_y.
// Rows are read once: a block takes as many as it has warps into shared memory, each warp finds
// the gradient of one, and then each thread adds some columns of all of them to the block's sums.
#include <algorithm>

#include "dofla/ops/cuda/launch.cuh"
#include "dofla/ops/cuda/norm_kernels.h"
#include "dofla/ops/cuda/row_tile.cuh"

namespace dofla::cuda {
namespace {

constexpr int kMostWarps = 8;
// Four for each multiprocessor of an H200. The same on every GPU, and with it the bits of the sums.
constexpr int64_t kMostBlocks = 528;
constexpr int64_t kSharedBytes = 112 * 1024;  // of a block, so that two fit; one warp may take more

// What a block keeps in shared memory. The sums come first: with a width in whole packs, the rows
// behind them begin at whole packs too.
template <class T>
struct Shared {
  float* sums;         // [2, width]
  float2* statistics;  // [kMostWarps], mean and scale of a row
  T* x;                // [warps, width]
  T* grad_y;           // [warps, width]

  __device__ Shared(int width, int warps) {
    extern __shared__ float4 memory[];
    sums = reinterpret_cast<float*>(memory);
    statistics = reinterpret_cast<float2*>(sums + 2 * width);
    x = reinterpret_cast<T*>(statistics + kMostWarps);
    grad_y = x + warps * width;
  }
  static int64_t bytes(int64_t width, int64_t warps) {
    return 2 * width * int64_t{sizeof(float)} + kMostWarps * int64_t{sizeof(float2)} +
           2 * warps * width * int64_t{sizeof(T)};
  }
};

// Calls f(its first element) for what is this lane's, in the order of a row.
template <int kSize, class F>
__device__ __forceinline__ void for_own(int width, const F& f) {
#pragma unroll 1
  for (int i = threadIdx.x % 32 * kSize; i < width; i += 32 * kSize) f(i);
}

// A pack in the background, a single element at once.
template <int kSize, class T>
__device__ __forceinline__ void bring(const T* from, T* to) {
  if constexpr (kSize == 1)
    *to = *from;
  else
    copy_16_bytes(to, from, true);
}

// The gradient of a row that this warp has brought to x and grad_y: a lane reads there what it has
// brought itself. Returns the row's mean and scale.
template <class T, int kSize>
__device__ __forceinline__ float2 row_backward(const NormArguments& a, const T* x, const T* grad_y,
                                               const float* weights, const T* addend, T* grad_x) {
  const int width = static_cast<int>(a.width);
  const float share = 1 / static_cast<float>(width);
  float mean = 0, square = 0, total = 0, along = 0;
  if (a.centre) {
    for_own<kSize>(width, [&](int i) {
      float value[kSize];
      load_some(x + i, value);
#pragma unroll
      for (int j = 0; j < kSize; ++j) mean += value[j];
    });
    mean = share * warp_sum(mean);
  }
  for_own<kSize>(width, [&](int i) {
    float value[kSize], gradient[kSize], weight[kSize];
    load_some(x + i, value), load_some(grad_y + i, gradient), load_some(weights + i, weight);
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      const float off = value[j] - mean, g = gradient[j] * weight[j];
      square = fmaf(off, off, square);
      total += g;
      along = fmaf(g, off, along);
    }
  });
  const float scale = rsqrtf(share * warp_sum(square) + a.epsilon);
  const float mean_g = a.centre ? share * warp_sum(total) : 0.0f;
  const float slope = share * warp_sum(along) * scale;
  for_own<kSize>(width, [&](int i) {
    float value[kSize], gradient[kSize], weight[kSize], result[kSize] = {};
    load_some(x + i, value), load_some(grad_y + i, gradient), load_some(weights + i, weight);
    if (addend != nullptr) load_some(addend + i, result);
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      const float unit = (value[j] - mean) * scale;
      result[j] = fmaf(scale, gradient[j] * weight[j] - mean_g - unit * slope, result[j]);
    }
    store_some(result, grad_x + i);
  });
  return make_float2(mean, scale);
}

// Two neighbours, or where a row may begin anywhere one.
template <bool kPairs, class T>
__device__ __forceinline__ float2 load_columns(const T* from) {
  if constexpr (kPairs)
    return reinterpret_cast<const Pair<T>*>(from)->floats();
  else
    return make_float2(to_float(*from), 0.0f);
}

// Adds `rows` rows in shared memory to the sums. A column is always the same thread's.
template <class T, bool kPairs>
__device__ void add_columns(const Shared<T>& shared, int width, int rows, bool with_bias) {
  constexpr int kTogether = kPairs ? 2 : 1;
  for (int c = threadIdx.x * kTogether; c < width; c += blockDim.x * kTogether) {
    float2 of_weight = {}, of_bias = {};
#pragma unroll 4
    for (int r = 0; r < rows; ++r) {
      const float2 gradient = load_columns<kPairs>(shared.grad_y + r * width + c);
      const float2 value = load_columns<kPairs>(shared.x + r * width + c);
      const float2 s = shared.statistics[r];
      of_weight.x = fmaf(gradient.x, (value.x - s.x) * s.y, of_weight.x);
      of_weight.y = fmaf(gradient.y, (value.y - s.x) * s.y, of_weight.y);
      of_bias.x += gradient.x, of_bias.y += gradient.y;
    }
    float* sums = shared.sums + c;
    sums[0] += of_weight.x;
    if (kPairs) sums[1] += of_weight.y;
    if (!with_bias) continue;
    sums[width] += of_bias.x;
    if (kPairs) sums[width + 1] += of_bias.y;
  }
}

template <class T, int kSize>
__global__ void __launch_bounds__(32 * kMostWarps)
    norm_rows_backward(NormArguments a, NormGradient n) {
  const int width = static_cast<int>(a.width);
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32;
  const Shared<T> shared(width, warps);
  T *const x = shared.x + warp * width, *const grad_y = shared.grad_y + warp * width;
  for (int i = threadIdx.x; i < 2 * width; i += blockDim.x) shared.sums[i] = 0;
  for (int64_t first = blockIdx.x * int64_t{warps}; first < a.rows;
       first += gridDim.x * int64_t{warps}) {
    if (first + warp < a.rows) {
      const int64_t row = (first + warp) * a.width;
      for_own<kSize>(width, [&](int i) {
        bring<kSize>(static_cast<const T*>(a.x) + row + i, x + i);
        bring<kSize>(static_cast<const T*>(n.grad_y) + row + i, grad_y + i);
      });
      commit_copies();
      wait_for_copies<0>();
      const T* addend = n.addend == nullptr ? nullptr : static_cast<const T*>(n.addend) + row;
      const float2 statistics =
          row_backward<T, kSize>(a, x, grad_y, a.weight, addend, static_cast<T*>(n.grad_x) + row);
      if (threadIdx.x % 32 == 0) shared.statistics[warp] = statistics;
    }
    if (n.sums == nullptr) continue;
    __syncthreads();
    const int rows = static_cast<int>(min(int64_t{warps}, a.rows - first));
    add_columns<T, (kSize > 1)>(shared, width, rows, n.with_bias);
    __syncthreads();
  }
  if (n.sums == nullptr) return;
  const int count = (n.with_bias ? 2 : 1) * width;
  for (int i = threadIdx.x; i < count; i += blockDim.x)
    n.sums[int64_t{blockIdx.x} * count + i] = shared.sums[i];
}

template <class T>
int warps_for(int64_t width) {
  int warps = kMostWarps;
  while (warps > 1 && Shared<T>::bytes(width, warps) > kSharedBytes) warps /= 2;
  return warps;
}

}  // namespace

int64_t norm_backward_blocks(const NormArguments& a) {
  const int warps =
      a.element == Element::kF32 ? warps_for<float>(a.width) : warps_for<__nv_bfloat16>(a.width);
  return std::min<int64_t>(kMostBlocks, blocks_for(a.rows, warps));
}

cudaError_t launch_norm_backward(const NormArguments& a, const NormGradient& n,
                                 cudaStream_t stream) {
  return with_type(a.element, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kSize = Pack<T>::kSize;
    const bool packs = a.width % kSize == 0 && aligned_to_packs(a.x, a.weight, n.grad_y) &&
                       aligned_to_packs(n.addend, n.grad_x);
    const int warps = warps_for<T>(a.width);
    launch(packs ? norm_rows_backward<T, kSize> : norm_rows_backward<T, 1>,
           dim3(static_cast<unsigned>(norm_backward_blocks(a))), 32 * warps,
           static_cast<size_t>(Shared<T>::bytes(a.width, warps)), stream, a, n);
  });
}

}  // namespace dofla::cuda
