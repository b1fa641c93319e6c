// The key figures of a section: the inside of a <dl>.
#pragma once

#include <string>

#include "dofla/report/report_data.h"

namespace dofla {

std::string dof_facts(const DofSection& dof);
std::string plan_facts(const PlanSection& plan);
std::string sensitivity_facts(const SensitivitySection& sensitivity);
std::string training_facts(const TrainingSection& training);

// Counted from 1: the layers with a relative error that is above 1, or not a number.
std::vector<size_t> layers_worse_than_nothing(const std::vector<double>& layer_error);

}  // namespace dofla
