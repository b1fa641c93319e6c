// What the backward of an attention takes over from its forward.
#pragma once

#include "dofla/core/tensor.h"

namespace dofla {

// Filled by a forward. A backward with an empty tape, or one without log sums, computes them again.
// Both may be those of a larger attention, of which the backward's is a part.
struct AttentionTape {
  Tensor out;      // [B, T, H, D], what the forward returned
  Tensor log_sum;  // [B, H, T] F32: logarithms of the denominators, or undefined
};

// Throws std::invalid_argument unless the tape is empty or that of a forward of these queries.
void require_tape(const AttentionTape& tape, const Tensor& q);  // [B, H, T, D]

}  // namespace dofla
