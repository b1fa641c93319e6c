#include "dofla/report/from_sensitivity.h"

#include "dofla/core/error.h"
#include "dofla/sensitivity/allocate.h"

namespace dofla {

SensitivitySection from_sensitivity(const SensitivityTable& table, const DimensionPlan* plan) {
  SensitivitySection section;
  section.windows = table.windows;
  for (const SensitivityTable::Curve& added : table.layers) {
    Curve& curve = section.layers.emplace_back();
    for (size_t i = 0; i < added.size(); ++i)
      curve.push_back({static_cast<double>(table.ladder[i]), added[i]});
  }
  if (plan == nullptr) return section;
  if (plan->model != table.model)
    fail("the plan is for {}, the sensitivity is of {}: make a plan from this file",
         to_string(plan->model), to_string(table.model));
  section.predicted = predicted_loss(table, *plan);
  return section;
}

}  // namespace dofla
