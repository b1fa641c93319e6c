// The direct objectives, of the whole linear model: cross-entropy of the next token, or the
// divergence from the teacher's distribution of it. The teacher's weights stay as they are; only
// the features learn.
#pragma once

#include "dofla/distill/loss.h"
#include "dofla/distill/objective.h"

namespace dofla {

// The student is made of the teacher's checkpoint. The teacher, on the same device, must live as
// long as the objective.
Objective direct_objective(const Checkpoint& checkpoint, const Transformer& teacher,
                           const DirectLoss& loss = {});

}  // namespace dofla
