// What the paper's theorem says of a head, in the form of its appendix: docs/theory.md, "What the
// theorem bounds".
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "dofla/dof/dof_table.h"

namespace dofla {

// The least M for which ‖(Σ+λI)^(−½)(Σ − Σ̂)(Σ+λI)^(−½)‖ ≤ t with probability 1 − δ, for features
// from the leverage density: M ≥ 4N/t² · log(64N/(δt²)). δ in (0, 1), t in (0, 3].
int64_t features_required(double dof, double delta, double t);

// The other way round: the least t that M features are enough for; nothing if that is above 3,
// where the theorem ends.
std::optional<double> error_required(double dof, double delta, int64_t features);

// (i): with that t, ‖K − K̂‖/‖K‖ in L²(ρ⊗ρ) is at most this with probability 1 − 2δ.
double kernel_error_bound(std::span<const double> spectrum, double lambda, double delta, double t);

// (ii), with α = 0: ‖(Σ − Σ̂)v‖ is at most this times ‖Σ‖‖v‖, for all v.
double sum_error_bound(std::span<const double> spectrum, double lambda, double t);

// Of the largest head of a layer.
struct LayerBound {
  int64_t head = 0;
  int64_t features = 0;                // M that t takes
  std::optional<double> kernel, sums;  // (i) and (ii), the mean over the draws; need spectra
  // What was measured of that head, where λ is the table's; and the theorem's t for the same M.
  std::optional<FeatureErrors> measured;
  std::vector<std::optional<double>> error_required;
};

std::vector<LayerBound> theorem_bounds(const DofTable& table, double lambda, double delta,
                                       double t);

}  // namespace dofla
