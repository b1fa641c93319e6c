// Degrees of freedom and the plans that follow from them, as runs: one for every seed.
#pragma once

#include "dofla/reproduce/run.h"
#include "dofla/reproduce/study.h"

namespace dofla {

std::string dof_run_name(uint64_t seed);                     // "dof-s1"
std::string plan_name(int64_t cost, PlanStrategy strategy);  // "c64-dof", in the records

// The study must outlive the run.
Run dof_run(const Study& study, uint64_t seed);

// What the record of such a run says; Error if there is none, or if it is of another teacher.
std::vector<std::vector<double>> read_dof(const Study& study, const RunFolder& folder,
                                          uint64_t seed);  // [layers, heads]
DimensionPlan plan_of(const Study& study, const RunFolder& folder, const Student& student);

}  // namespace dofla
