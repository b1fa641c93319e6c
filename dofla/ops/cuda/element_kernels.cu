#include <type_traits>

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

struct Scaled {
  float factor;
  __device__ float operator()(float x, float) const { return factor * x; }
};

// Calls go(function, its slope).
template <class Go>
cudaError_t with_activation(Activation f, const Go& go) {
  switch (f) {
    case Activation::kGelu:
      return go(Gelu{}, GeluSlope{});
    case Activation::kGeluTanh:
      return go(GeluTanh{}, GeluTanhSlope{});
    case Activation::kSilu:
      return go(Silu{}, SiluSlope{});
    case Activation::kRelu:
      return go(Relu{}, ReluSlope{});
  }
  return cudaErrorInvalidValue;
}

// As it would be read again after it was written.
template <class T>
__device__ float rounded(float x) {
  return to_float(from_float<T>(x));
}

// Calls work(its first element, how many) for what is this thread's, as update_elements has it.
template <class T, class Work>
__device__ void for_own_elements(int64_t count, int64_t packs, const Work& work) {
  constexpr int kSize = Pack<T>::kSize;
  const int64_t thread = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (thread < packs)
    work(thread * kSize, std::integral_constant<int, kSize>());
  else if (thread - packs < count - packs * kSize)
    work(packs * kSize + thread - packs, std::integral_constant<int, 1>());
}

// result = f(inner) · gated, rounded in between: the bits of two launches. Without `gated`
// f(inner).
template <class T, class F>
__global__ void gate_elements(int64_t count, int64_t packs, const T* __restrict__ inner,
                              const T* __restrict__ gated, T* __restrict__ result, F f) {
  for_own_elements<T>(count, packs, [&](int64_t at, auto size) {
    constexpr int kCount = decltype(size)::value;
    float x[kCount], y[kCount];
    load_some(inner + at, x);
    if (gated != nullptr) load_some(gated + at, y);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      x[j] = rounded<T>(f(x[j], 0));
      if (gated != nullptr) x[j] *= y[j];
    }
    store_some(x, result + at);
  });
}

// The same backwards, with the result unless it is null.
template <class T, class F, class Slope>
__global__ void gate_elements_backward(int64_t count, int64_t packs, const T* __restrict__ inner,
                                       const T* __restrict__ gated, T* __restrict__ gradient,
                                       T* __restrict__ gradient_gated, T* __restrict__ result, F f,
                                       Slope slope) {
  for_own_elements<T>(count, packs, [&](int64_t at, auto size) {
    constexpr int kCount = decltype(size)::value;
    float x[kCount], y[kCount], g[kCount], of_gated[kCount], received[kCount];
    load_some(inner + at, x);
    load_some(gated + at, y);
    load_some(gradient + at, g);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const float activated = rounded<T>(f(x[j], 0));
      received[j] = activated * y[j];
      of_gated[j] = activated * g[j];
      g[j] = slope(rounded<T>(g[j] * y[j]), x[j]);
    }
    store_some(g, gradient + at);
    store_some(of_gated, gradient_gated + at);
    if (result != nullptr) store_some(received, result + at);
  });
}

template <class T>
__global__ void round_elements(int64_t count, const float* __restrict__ x, T* __restrict__ y) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i < count) y[i] = from_float<T>(x[i]);
}

}  // namespace

cudaError_t launch_activation(Activation f, Element element, int64_t count, void* x,
                              cudaStream_t stream) {
  return with_activation(f, [&](auto function, auto) {
    return launch_update(element, count, nullptr, x, function, stream);
  });
}

cudaError_t launch_activation_backward(Activation f, Element element, int64_t count, const void* x,
                                       void* gradient, cudaStream_t stream) {
  return with_activation(f, [&](auto, auto slope) {
    return launch_update(element, count, x, gradient, slope, stream);
  });
}

cudaError_t launch_gate(Activation f, Element element, int64_t count, const void* inner,
                        const void* gated, void* result, cudaStream_t stream) {
  return with_activation(f, [&](auto function, auto) {
    return with_type(element, [&](auto zero) {
      using T = decltype(zero);
      const int64_t packs = aligned_to_packs(inner, gated, result) ? count / Pack<T>::kSize : 0;
      const int64_t threads = packs + count - packs * Pack<T>::kSize;
      if (threads > 0)
        gate_elements<T><<<blocks_for(threads, kThreads), kThreads, 0, stream>>>(
            count, packs, static_cast<const T*>(inner), static_cast<const T*>(gated),
            static_cast<T*>(result), function);
    });
  });
}

cudaError_t launch_gate_backward(Activation f, Element element, int64_t count, const void* inner,
                                 const void* gated, void* gradient, void* gradient_gated,
                                 void* result, cudaStream_t stream) {
  return with_activation(f, [&](auto function, auto slope) {
    return with_type(element, [&](auto zero) {
      using T = decltype(zero);
      const bool aligned =
          aligned_to_packs(inner, gated, result) && aligned_to_packs(gradient, gradient_gated);
      const int64_t packs = aligned ? count / Pack<T>::kSize : 0;
      const int64_t threads = packs + count - packs * Pack<T>::kSize;
      if (threads > 0)
        gate_elements_backward<T><<<blocks_for(threads, kThreads), kThreads, 0, stream>>>(
            count, packs, static_cast<const T*>(inner), static_cast<const T*>(gated),
            static_cast<T*>(gradient), static_cast<T*>(gradient_gated), static_cast<T*>(result),
            function, slope);
    });
  });
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

cudaError_t launch_scale(float factor, Element element, int64_t count, void* x,
                         cudaStream_t stream) {
  return launch_update(element, count, nullptr, x, Scaled{factor}, stream);
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
