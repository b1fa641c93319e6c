// Adam on one element: every rounding is written down, so that all kernels have the same bits.
#pragma once

#include "dofla/ops/adam_factors.h"
#include "dofla/ops/cuda/element.h"

namespace dofla::cuda {

__device__ inline void adam_element(const AdamFactors& f, float gradient, float& mean,
                                    float& square, float& parameter) {
  mean = fmaf(gradient - mean, 1 - f.beta1, mean);
  square = fmaf(gradient * gradient, 1 - f.beta2, square * f.beta2);
  const float root = fmaf(sqrtf(square), f.square_to_root, f.epsilon);
  parameter = fmaf(-f.step, mean / root, parameter * f.keep);
}

// What core/random.h has for the CPU.
__device__ inline uint64_t mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// As ops/cpu/adam.cc has it.
__device__ inline uint16_t rounded_by_chance(float x, uint64_t chance) {
  constexpr uint32_t kExponent = 0x7f800000u;
  const uint32_t bits = __float_as_uint(x);
  const uint32_t more = (bits & kExponent) == kExponent ? 0 : chance & 0xffffu;
  return static_cast<uint16_t>((bits + more) >> 16);
}

}  // namespace dofla::cuda
