// The nonlinearities of feed-forward layers on one number, for the kernels that end with one. The
// second argument is not used: it lets them stand where sums and products do.
#pragma once

#include "dofla/ops/cuda/element_kernels.h"

namespace dofla::cuda {

__device__ __forceinline__ float sigmoid(float x) {
  return 1 / (1 + __expf(-x));
}

__device__ __forceinline__ float normal_cdf(float x) {
  return 0.5f * (1 + erff(x * 0.70710678f));
}

struct Gelu {
  __device__ float operator()(float x, float) const { return x * normal_cdf(x); }
};

constexpr float kTwiceRoot2OverPi = 2 * 0.79788456f;
constexpr float kCubic = 0.044715f;

struct GeluTanh {  // ½(1 + tanh u) is sigmoid(2u)
  __device__ float operator()(float x, float) const {
    return x * sigmoid(kTwiceRoot2OverPi * (x + kCubic * x * x * x));
  }
};

struct Silu {
  __device__ float operator()(float x, float) const { return x * sigmoid(x); }
};

struct Relu {
  __device__ float operator()(float x, float) const { return x > 0 ? x : 0; }
};

__device__ __forceinline__ float apply(Activation f, float x) {
  switch (f) {
    case Activation::kGelu:
      return Gelu{}(x, 0);
    case Activation::kGeluTanh:
      return GeluTanh{}(x, 0);
    case Activation::kSilu:
      return Silu{}(x, 0);
    case Activation::kRelu:
      return Relu{}(x, 0);
  }
  return x;
}

}  // namespace dofla::cuda
