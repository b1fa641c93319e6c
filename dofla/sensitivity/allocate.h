// From measured sensitivity to a plan: the next features go where they save most of the loss.
#pragma once

#include "dofla/plan/allocate.h"
#include "dofla/sensitivity/loss_curve.h"
#include "dofla/sensitivity/sensitivity_table.h"

namespace dofla {

// By head C · heads features in all, by layer C · layers in all with the same M for all heads of a
// layer; at least `least` each. Of the options, power has no meaning here and is refused with
// std::invalid_argument, as is another strategy. Throws Error if the cost does not buy the least.
// For a memory instead of a cost, allocate_memory().
DimensionPlan allocate(const SensitivityTable& table, const AllocateOptions& options);

// The M of every curve, `total` in all, that make the sum of the curves smallest: since the curves
// are convex, the next feature always goes where it saves most. Where two save the same, to the
// curve that has fewer, then to the first.
std::vector<int64_t> spend(const std::vector<LossCurve>& curves, int64_t total, int64_t least);

// What the curves say that each layer of a plan adds to the loss, by itself: with exact keys of its
// own, where the table has a key ladder, as HybridLoss has it, otherwise beside those of the table.
std::vector<double> predicted_loss(const SensitivityTable& table, const DimensionPlan& plan);

// Likewise what each layer adds to the loss of repeated tokens; none if the table says nothing of
// recall.
std::vector<double> predicted_recall(const SensitivityTable& table, const DimensionPlan& plan);

}  // namespace dofla
