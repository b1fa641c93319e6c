// How many features M every head of a model gets. The paper's strategies give all heads of a layer
// the same M; the plan holds one per head all the same.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "dofla/core/json.h"
#include "dofla/core/names.h"
#include "dofla/features/exact_key_set.h"
#include "dofla/features/feature_map.h"
#include "dofla/model/identity.h"
#include "dofla/model/operations.h"

namespace dofla {

enum class PlanStrategy {
  kFix,          // M = C everywhere
  kDof,          // M of a layer in proportion to the largest degrees of freedom among its heads
  kDofClip,      // the same, then at most the head size
  kDofHead,      // M of a head in proportion to a power of its own degrees of freedom
  kSensitivity,  // where a feature saves most of the loss, as it was measured
};

template <>
struct Names<PlanStrategy> {
  static constexpr std::string_view kWhat = "strategy";
  static constexpr std::array kAll = {
      Name{PlanStrategy::kFix, "fix"}, Name{PlanStrategy::kDof, "dof"},
      Name{PlanStrategy::kDofClip, "dof-clip"}, Name{PlanStrategy::kDofHead, "dof-head"},
      Name{PlanStrategy::kSensitivity, "sensitivity"}};
};

// Whether all heads of a layer get the same M, or each its own.
enum class PlanUnit { kLayer, kHead };

template <>
struct Names<PlanUnit> {
  static constexpr std::string_view kWhat = "unit";
  static constexpr std::array kAll = {Name{PlanUnit::kLayer, "layer"},
                                      Name{PlanUnit::kHead, "head"}};
};

struct DimensionPlan {
  static constexpr int64_t kLargestDimension = int64_t{1} << 20;

  ModelIdentity model;
  int64_t feature_heads = 0;  // heads of a layer that have features: key heads; 0: all query heads
  PlanStrategy strategy = PlanStrategy::kFix;
  int64_t cost = 0;                         // C: the mean M that was asked for
  double lambda = 0;                        // that the degrees of freedom were taken at
  double power = 1;                         // of the degrees of freedom, for kDofHead
  int64_t least = 1;                        // no head has fewer
  PlanUnit by = PlanUnit::kLayer;           // kHead for kDofHead, either for kSensitivity
  std::vector<std::vector<int64_t>> heads;  // M, [layers, heads]; none for a layer without
                                            // features: one that keeps its softmax attention or,
                                            // where it has exact keys, forgets the others
  ExactKeySet exact = {};                   // keys that layers keep exact beside their features
  int64_t key_heads = 0;                    // of a layer, where there are exact keys

  int64_t heads_in_layer() const { return feature_heads > 0 ? feature_heads : model.heads; }
  int64_t state_bytes() const;  // of a sequence, in all layers together
  // Of attention in a layer; nothing where it keeps softmax attention, whose cost grows.
  std::optional<TokenCost> token_cost(size_t layer) const;
  double mean() const;                // over the heads that have features
  std::vector<int64_t> dims() const;  // one M a layer: its heads' M, or their mean, rounded, or 0
};

// Throws Error unless the plan is for a model of this family and shape, and for the heads that
// these features belong to.
void require_fits(const DimensionPlan& plan, const ModelConfig& config, FeatureMap features);

// {"format":"dofla.plan",…,"strategy","cost","least","lambda","model","feature_heads","dims","mean",
// "state_bytes","layer_costs":[{"bytes","operations"}]}, for kDofHead "power", by head "heads", and
// with exact keys "exact_keys" and "key_heads"; a layer without features has null in dims and
// heads, one with softmax attention in layer_costs. Loading trusts nothing in the file and throws
// Error "path: …".
Json to_json(const DimensionPlan& plan);
void save_dimension_plan(const fs::path& path, const DimensionPlan& plan);
DimensionPlan load_dimension_plan(const fs::path& path, Input input = Input::kFileOrPipe);

}  // namespace dofla
