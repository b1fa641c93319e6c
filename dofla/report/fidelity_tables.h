// The numbers of a fidelity report as tables.
#pragma once

#include <vector>

#include "dofla/fidelity/fidelity.h"
#include "dofla/report/result_table.h"

namespace dofla {

// A student on every text, and on all of them.
ResultTable losses_table(const FidelityReport& report);
ResultTable divergence_table(const FidelityReport& report);
ResultTable agreement_table(const FidelityReport& report);
// One of `slices` (&WhereLost::by_position, …) over all texts, students side by side.
ResultTable slices_table(const FidelityReport& report, std::vector<Slice> WhereLost::*slices,
                         const std::string& title, const std::string& what);
ResultTable controls_table(const FidelityReport& report);  // no rows where there are none
ResultTable cost_table(const FidelityReport& report);
// Teacher, students and guessing side by side; no rows where nothing was asked.
ResultTable recall_table(const FidelityReport& report);
ResultTable answers_table(const FidelityReport& report);
ResultTable yardsticks_table(const FidelityReport& report);
ResultTable verdict_table(const FidelityReport& report);

// "0.0382 ± 0.0021"; without the error where it is not known.
std::string with_error(double value, double error);

}  // namespace dofla
