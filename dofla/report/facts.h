// The key figures of a section: the inside of a <dl>.
#pragma once

#include <string>

#include "dofla/report/report_data.h"

namespace dofla {

std::string dof_facts(const DofSection& dof);
std::string plan_facts(const PlanSection& plan);
std::string training_facts(const TrainingSection& training);

}  // namespace dofla
