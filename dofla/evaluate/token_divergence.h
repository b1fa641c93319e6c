// How far a student's distributions of the next token are from its teacher's on one window.
#pragma once

#include "dofla/model/transformer.h"
#include "dofla/ops/divergence.h"

namespace dofla {

// Sums over the window's predicted tokens. Both models have the same vocabulary. Logits are never
// stored whole.
Divergence token_divergence(const Transformer& teacher,
                            const Tensor& teacher_out,  // [1, T, width], of Transformer::forward()
                            const Transformer& student,
                            const Tensor& student_out,  // [1, T, width], the student's
                            const Tensor& ids);         // [1, T], I64

}  // namespace dofla
