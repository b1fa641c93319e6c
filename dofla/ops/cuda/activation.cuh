// The nonlinearities of feed-forward layers on one number, for the epilogues of kernels. The second
// argument is not used: it gives them the same signature as sums and products.
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

struct GeluTanh {  // ½(1 + tanh u) is sigmoid(2u)
  static constexpr float kTwiceRoot2OverPi = 2 * 0.79788456f;
  static constexpr float kCubic = 0.044715f;

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
