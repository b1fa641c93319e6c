// The page's charts, each one inline SVG element. What can be hovered or focused is a "mark": it
// carries its value as an aria-label, and its row and column for the arrow keys.
#pragma once

#include <string>

#include "dofla/report/report_data.h"

namespace dofla {

// Layers down, heads across, colour by the logarithm of a number that every head has.
struct HeatMap {
  struct Cell {
    double value = 0;
    double spread = 0;  // 0: none
  };
  std::string kind;  // also the prefix of the element ids in this chart
  const char* label = "";
  const char* what = "";                                    // "degrees of freedom"
  std::string (*number)(double value, double spread) = {};  // as it is told
  std::string (*short_number)(double value) = {};           // as a cell has room for it
  std::vector<std::vector<Cell>> layers;
};
std::string render_heat_map(const HeatMap& map);
std::string render_heat_map(const DofSection& dof);

// The mean M of every layer with its spread; the single heads where they differ.
std::string render_dimension_bars(const PlanSection& plan);

// Eigenvalues by rank: the largest head of every layer, the other heads faint behind.
std::string render_spectra(const DofSection& dof);
bool shows_other_heads(const DofSection& dof);  // not when there are too many to be seen

std::string render_dof_by_lambda(const DofSection& dof);
// The error of M features from the leverage density, and faint that of Gaussian ones.
std::string render_feature_errors(const DofSection& dof);

// The loss that every layer alone adds against M, and for the plan's M what was predicted beside
// what came of it.
std::string render_sensitivity(const SensitivitySection& sensitivity);
std::string render_predicted_loss(const SensitivitySection& sensitivity);

std::string render_loss_curves(const TrainingSection& training);
std::string render_layer_errors(const TrainingSection& training);

// The head with the largest degrees of freedom, counted from 0; -1 if no head has a number.
int64_t largest_head(const LayerDof& layer);

double mean_dimension(const LayerPlan& layer);  // over its heads; NaN without heads
bool heads_differ(const LayerPlan& layer);

}  // namespace dofla
