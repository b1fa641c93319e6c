// The report's sections from the stages' results.
#pragma once

#include "dofla/dof/dof_table.h"
#include "dofla/plan/dimension_plan.h"
#include "dofla/report/report_data.h"

namespace dofla {

// Degrees of freedom at λ, mean spectra over the draws, and the curves over every power of two from
// the table's smallest λ to 1. Throws Error if the table cannot answer for λ.
DofSection from_dof_table(const DofTable& table, double lambda);

// With the table that the plan was made from, the spread of M follows from that of the degrees of
// freedom, to first order and with the total held fixed; without, it is zero. Throws Error if the
// two are of different models.
PlanSection from_dimension_plan(const DimensionPlan& plan, const DofTable* table);

}  // namespace dofla
