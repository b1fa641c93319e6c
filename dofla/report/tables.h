// The numbers of every chart as HTML tables. A wide table scrolls in a box of its own.
#pragma once

#include <string>

#include "dofla/report/report_data.h"

namespace dofla {

std::string dof_table_html(const DofSection& dof);             // layer × head, value ± spread
std::string plan_table_html(const PlanSection& plan);          // M of every layer, and of heads
std::string spectra_table_html(const DofSection& dof);         // layer × rank 1, 2, 4, …
std::string by_lambda_table_html(const DofSection& dof);       // layer × λ
std::string feature_errors_table_html(const DofSection& dof);  // layer and density × M
std::string sensitivity_table_html(const SensitivitySection& sensitivity);     // layer × M
std::string predicted_loss_table_html(const SensitivitySection& sensitivity);  // of every layer
std::string loss_table_html(const TrainingSection& training);  // layer × five moments, and floor
std::string error_table_html(const TrainingSection& training);
std::string controls_table_html(const TrainingSection& training);  // student and controls

}  // namespace dofla
