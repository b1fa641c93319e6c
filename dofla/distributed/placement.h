// Which cores a rank has to itself.
#pragma once

#include "dofla/distributed/group.h"

namespace dofla {

// All ranks. How many threads a rank should have: its share of the cores that the ranks of a
// machine may use together, and no more than it may use itself. mpirun may have bound it to some.
int threads_of_rank(const Group& group);

}  // namespace dofla
