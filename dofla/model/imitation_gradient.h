// The loss of a student that imitates its teacher, with its gradient.
#pragma once

#include "dofla/model/transformer.h"

namespace dofla {

// The mean over all tokens of KL(teacher ‖ model) between their distributions of the next one, in
// nats; the gradients of `share` times it are added to `gradients`. Both have one vocabulary and
// are on one device.
double imitation_gradient(const Transformer& model, const Transformer& teacher,
                          const Tensor& ids,  // [B, T]
                          bool recompute, Gradients& gradients, double share = 1);

}  // namespace dofla
