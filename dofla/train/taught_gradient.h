// The loss of a student that learns from what a teacher's file has of its teacher, with its
// gradient; and what goes into such a file.
#pragma once

#include "dofla/model/transformer.h"
#include "dofla/train/teacher_file.h"

namespace dofla {

// The k likeliest next tokens of every row, the likeliest first, of equal ones the smaller id.
TopTokens top_tokens(const Transformer& model,
                     const Tensor& ids,  // [B, T] -> B·T rows
                     int64_t top);

// The mean over all tokens of KL(teacher ‖ model) between distributions over the k tokens of the
// teacher and one bucket for all others, in nats; the gradients of `share` times it are added to
// `gradients`. It is at most the divergence of the whole distributions, and the same where k is the
// whole vocabulary.
double taught_gradient(const Transformer& model, const TopTokens& teacher,  // B·T rows
                       const Tensor& ids,                                   // [B, T]
                       bool recompute, Gradients& gradients, double share = 1);

}  // namespace dofla
