// The direct objective: next-token cross-entropy of the whole linear model. The teacher's weights
// stay as they are; only the features learn.
#pragma once

#include "dofla/distill/objective.h"

namespace dofla {

struct DirectOptions {
  Device device;
  // Keep only the input of every block and run the block again in the backward: about a third more
  // time, a fraction of the memory.
  bool recompute = false;
};

// The checkpoint is the teacher's.
Objective direct_objective(const Checkpoint& teacher, const DirectOptions& options);

}  // namespace dofla
