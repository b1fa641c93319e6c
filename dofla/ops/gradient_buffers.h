// Where the backward of an attention puts the gradients of its heads.
#pragma once

#include "dofla/core/tensor.h"

namespace dofla {

// Each may be a view, such as the columns of a projection's rows that the heads came from, or be
// undefined for a new tensor.
struct GradientBuffers {
  Tensor q;  // [B, H, T, D]
  Tensor k;  // [B, Hkv, N, D], with N the keys
  Tensor v;  // [B, Hkv, N, D]
};

// With new tensors for what is undefined. Throws std::invalid_argument unless the rest goes with
// the queries and keys.
GradientBuffers allocate_missing(const GradientBuffers& buffers,
                                 const Tensor& q,   // [B, H, T, D]
                                 const Tensor& k);  // [B, Hkv, N, D]

// Moves a gradient that was computed elsewhere to its buffer, if it has one.
void move_into(const Tensor& buffer, Tensor& gradient);

}  // namespace dofla
