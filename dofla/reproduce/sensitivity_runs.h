// Plans by measured sensitivity, as runs: one for every seed.
#pragma once

#include "dofla/reproduce/run.h"
#include "dofla/reproduce/study.h"

namespace dofla {

std::string sensitivity_run_name(uint64_t seed);  // "sensitivity-s1"

// Its record has the plans of all costs, under the same names as that of dof_run(). The study must
// outlive the run.
Run sensitivity_run(const Study& study, uint64_t seed);

}  // namespace dofla
