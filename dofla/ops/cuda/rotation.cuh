// The rotary position embedding of one coordinate, as all kernels compute it.
#pragma once

#include <cuda_runtime.h>

namespace dofla::cuda {

// By which a pair of coordinates turns at a position.
struct Turn {
  float cosine, sine;
};
__device__ __forceinline__ Turn turn_at(int64_t position, float frequency) {
  Turn turn;
  sincosf(static_cast<float>(position) * frequency, &turn.sine, &turn.cosine);
  return turn;
}

// The first coordinate of a pair is turned with the negated sine. `signed_sine` has that sign.
__device__ __forceinline__ float turned(float x, float partner, float cosine, float signed_sine) {
  return fmaf(x, cosine, partner * signed_sine);
}

}  // namespace dofla::cuda
