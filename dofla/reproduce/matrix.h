// All runs of a study, in an order in which each finds the results that it needs.
#pragma once

#include "dofla/reproduce/run.h"
#include "dofla/reproduce/study.h"

namespace dofla {

// The study and the folder must outlive the runs. Reads the files of the tasks, if there are any:
// Error if one is missing or malformed.
std::vector<Run> make_matrix(const Study& study, const RunFolder& folder);

}  // namespace dofla
