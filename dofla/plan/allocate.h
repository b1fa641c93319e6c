// From degrees of freedom to feature dimensions at a given cost (the paper's Algorithm 1, last
// step).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "dofla/dof/dof_table.h"
#include "dofla/plan/dimension_plan.h"

namespace dofla {

// Features of a key head that has exact keys too, on average, where nothing else is said: a few do
// most of what features can do there (docs/hybrid.md).
inline constexpr int64_t kFeaturesBesideExactKeys = 16;

// The share of recall in a plan for a memory, where nothing else is said (docs/sensitivity.md).
inline constexpr double kRecallShare = 0.02;

struct AllocateOptions {
  PlanStrategy strategy = PlanStrategy::kDof;
  // C: the mean M over layers (and heads) that may be spent; left out: the head size.
  std::optional<int64_t> cost = {};
  // Bytes a sequence that exact keys and features may take in all layers together, instead of a
  // cost; of kSensitivity alone.
  std::optional<int64_t> memory = {};
  std::optional<double> power = {};  // P, of kDofHead alone: M in proportion to N^P; left out: 1
  int64_t least = 1;                 // no head gets fewer features
  std::optional<PlanUnit> by = {};   // of kSensitivity alone; left out: head
  // Of a memory: the share of tokens that are taken to repeat what stood anywhere before, 0 to 1;
  // left out: kRecallShare, where the sensitivity knows of recall.
  std::optional<double> recall_share = {};
};

// Throws Error unless the cost is from 1 to DimensionPlan::kLargestDimension and buys `least`
// features for every head.
void require_affordable(int64_t cost, int64_t least);

// Takes the degrees of freedom at λ; left out: at the λ of the table. Throws Error if the cost is
// not affordable, the power negative or not finite, or λ not one that the table can answer for, and
// std::invalid_argument on a power for another strategy, or on kSensitivity, for which
// sensitivity/allocate.h is.
DimensionPlan allocate(const DofTable& table, const AllocateOptions& options,
                       std::optional<double> lambda = {});

// The plan of strategy fix, for which nothing has to be measured: M = C everywhere.
// `feature_heads` as in DimensionPlan.
DimensionPlan fixed_plan(const ModelIdentity& model, int64_t cost, int64_t feature_heads = 0);

// M for every head of layers that have one each.
std::vector<std::vector<int64_t>> same_for_all_heads(const std::vector<int64_t>& layers,
                                                     int64_t heads);

// M_s = round(C · N_s / mean N), at least `least`. The sum exceeds S·C by at most S/2, which is
// what rounding can do: where the least M would add more, the largest M give it back.
std::vector<int64_t> allocate_layers(const std::vector<double>& dof, int64_t cost,
                                     int64_t least = 1);

// M in proportion to N^P, at least `least`, with sum N.size() · C exactly: shares are rounded down
// and the largest remainders rounded up.
std::vector<int64_t> allocate_heads(const std::vector<double>& dof, int64_t cost, double power,
                                    int64_t least = 1);

}  // namespace dofla
