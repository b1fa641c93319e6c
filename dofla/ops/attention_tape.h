// What the backward of an attention takes over from its forward.
#pragma once

#include "dofla/core/tensor.h"

namespace dofla {

// Filled by a forward. A backward with an empty tape, or one without log sums, computes them again.
// Both may be those of a larger attention, of which the backward's is a part.
struct AttentionTape {
  Tensor out;      // [B, T, H, D], what the forward returned
  Tensor log_sum;  // [B, H, T] F32: logarithms of the denominators, or undefined
  // Of hybrid attention (ops/hybrid_attention.h), where keys have left: which ones and when
  // (Evictions), and the attention to those that have left alone, in the rows that see any.
  Tensor order = {}, leaves = {}, kept = {};
  Tensor left_out = {};      // [B, R, H, D]
  Tensor left_log_sum = {};  // [B, H, R] F32
};

// Throws std::invalid_argument unless the tape is empty or that of a forward of these queries.
void require_tape(const AttentionTape& tape, const Tensor& q);  // [B, H, T, D]

}  // namespace dofla
