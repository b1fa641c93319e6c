// The report's section on sensitivity from the stage's result.
#pragma once

#include "dofla/plan/dimension_plan.h"
#include "dofla/report/report_data.h"
#include "dofla/sensitivity/sensitivity_table.h"

namespace dofla {

// With a plan of the same model, what the curves predict for it. Throws Error if the two are of
// different models.
SensitivitySection from_sensitivity(const SensitivityTable& table, const DimensionPlan* plan);

}  // namespace dofla
