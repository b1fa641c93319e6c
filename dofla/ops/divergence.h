// How far a student's next-token distribution is from its teacher's.
#pragma once

#include "dofla/core/tensor.h"

namespace dofla {

struct Divergence {
  double teacher_loss = 0;  // Σ over rows of −log softmax(teacher)[target], in nats
  double student_loss = 0;
  double kl = 0;      // Σ over rows of KL(teacher ‖ student), in nats
  int64_t agree = 0;  // rows whose most likely token is the same
};

// Sums over rows, so that blocks of rows can be added up.
Divergence divergence(const Tensor& teacher,   // logits [R, V], F32
                      const Tensor& student,   // logits [R, V], F32
                      const Tensor& targets);  // [R], I64

}  // namespace dofla
