#include "dofla/ops/cuda/activation.cuh"
#include "dofla/ops/cuda/element_kernels.h"
#include "dofla/ops/cuda/vector.cuh"

namespace dofla::cuda {
namespace {

constexpr int kThreads = 256;

// x[i] = f(x[i], y[i]) over the given number of packs, the rest element by element.
template <class T, class F>
__global__ void update_elements(int64_t count, int64_t packs, const T* __restrict__ y,
                                T* __restrict__ x, F f) {
  constexpr int kSize = Pack<T>::kSize;
  const int64_t thread = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (thread < packs) {
    Pack<T> a = load_pack(x + thread * kSize);
    const Pack<T> b = y == nullptr ? a : load_pack(y + thread * kSize);
#pragma unroll
    for (int i = 0; i < kSize; ++i) a.values[i] = f(a.values[i], b.values[i]);
    store_pack(a, x + thread * kSize);
  } else if (thread - packs < count - packs * kSize) {
    const int64_t i = packs * kSize + thread - packs;
    x[i] = from_float<T>(f(to_float(x[i]), y == nullptr ? 0.0f : to_float(y[i])));
  }
}

template <class F>
cudaError_t launch_update(Element element, int64_t count, const void* y, void* x, F f,
                          cudaStream_t stream) {
  return with_type(element, [&](auto zero) {
    using T = decltype(zero);
    const int64_t packs = aligned_to_packs(x, y) ? count / Pack<T>::kSize : 0;
    const int64_t threads = packs + count - packs * Pack<T>::kSize;
    if (threads > 0)
      update_elements<T><<<blocks_for(threads, kThreads), kThreads, 0, stream>>>(
          count, packs, static_cast<const T*>(y), static_cast<T*>(x), f);
  });
}

struct GeluSlope {
  __device__ float operator()(float gradient, float x) const {
    return gradient * (normal_cdf(x) + x * 0.39894228f * __expf(-0.5f * x * x));
  }
};

struct GeluTanhSlope {
  __device__ float operator()(float gradient, float x) const {
    const float s = sigmoid(GeluTanh::kTwiceRoot2OverPi * (x + GeluTanh::kCubic * x * x * x));
    return gradient *
           (s + x * s * (1 - s) * GeluTanh::kTwiceRoot2OverPi * (1 + 3 * GeluTanh::kCubic * x * x));
  }
};

struct SiluSlope {
  __device__ float operator()(float gradient, float x) const {
    const float s = sigmoid(x);
    return gradient * s * (1 + x * (1 - s));
  }
};

struct ReluSlope {
  __device__ float operator()(float gradient, float x) const { return x > 0 ? gradient : 0; }
};

struct Plus {
  __device__ float operator()(float x, float y) const { return x + y; }
};
struct Times {
  __device__ float operator()(float x, float y) const { return x * y; }
};

struct ScaledDifference {
  float factor;
  __device__ float operator()(float x, float y) const { return factor * (x - y); }
};

template <class T>
__global__ void round_elements(int64_t count, const float* __restrict__ x, T* __restrict__ y) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i < count) y[i] = from_float<T>(x[i]);
}

}  // namespace

cudaError_t launch_activation(Activation f, Element element, int64_t count, void* x,
                              cudaStream_t stream) {
  switch (f) {
    case Activation::kGelu:
      return launch_update(element, count, nullptr, x, Gelu{}, stream);
    case Activation::kGeluTanh:
      return launch_update(element, count, nullptr, x, GeluTanh{}, stream);
    case Activation::kSilu:
      return launch_update(element, count, nullptr, x, Silu{}, stream);
    case Activation::kRelu:
      return launch_update(element, count, nullptr, x, Relu{}, stream);
  }
  return cudaErrorInvalidValue;
}

cudaError_t launch_activation_backward(Activation f, Element element, int64_t count, const void* x,
                                       void* gradient, cudaStream_t stream) {
  switch (f) {
    case Activation::kGelu:
      return launch_update(element, count, x, gradient, GeluSlope{}, stream);
    case Activation::kGeluTanh:
      return launch_update(element, count, x, gradient, GeluTanhSlope{}, stream);
    case Activation::kSilu:
      return launch_update(element, count, x, gradient, SiluSlope{}, stream);
    case Activation::kRelu:
      return launch_update(element, count, x, gradient, ReluSlope{}, stream);
  }
  return cudaErrorInvalidValue;
}

cudaError_t launch_add(Element element, int64_t count, const void* y, void* x,
                       cudaStream_t stream) {
  return launch_update(element, count, y, x, Plus{}, stream);
}

cudaError_t launch_multiply(Element element, int64_t count, const void* y, void* x,
                            cudaStream_t stream) {
  return launch_update(element, count, y, x, Times{}, stream);
}

cudaError_t launch_subtract(float factor, Element element, int64_t count, const void* y, void* x,
                            cudaStream_t stream) {
  return launch_update(element, count, y, x, ScaledDifference{factor}, stream);
}

cudaError_t launch_round(int64_t count, const float* x, void* y, Element element,
                         cudaStream_t stream) {
  return with_type(element, [&](auto zero) {
    if (count > 0)
      round_elements<<<blocks_for(count, kThreads), kThreads, 0, stream>>>(
          count, x, static_cast<decltype(zero)*>(y));
  });
}

}  // namespace dofla::cuda
