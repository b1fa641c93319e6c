// The direct objective: next-token cross-entropy of the whole linear model. The teacher's weights
// stay as they are; only the features learn.
#pragma once

#include "dofla/distill/loss.h"
#include "dofla/distill/objective.h"

namespace dofla {

// The checkpoint is the teacher's.
Objective direct_objective(const Checkpoint& teacher, const DirectLoss& loss = {},
                           const Device& device = {});

}  // namespace dofla
