// Features before training: how z and log α of every head are drawn.
#pragma once

#include <cstdint>
#include <functional>

#include "dofla/dof/dof_table.h"
#include "dofla/features/feature_set.h"
#include "dofla/plan/dimension_plan.h"

namespace dofla {

enum class FeatureInit {
  kIid,         // z ~ N(0, I), the density under which the features are unbiased
  kOrthogonal,  // orthogonal within blocks of D, with the norms of independent Gaussian vectors
  kLeverage,    // from the density of the ridge leverage score: see dof/leverage.h
  kPairs,       // on the sums of queries and the keys they attend to: see pair_init.h
};

template <>
struct Names<FeatureInit> {
  static constexpr std::string_view kWhat = "way to draw features";
  static constexpr std::array kAll = {
      Name{FeatureInit::kIid, "iid"}, Name{FeatureInit::kOrthogonal, "orthogonal"},
      Name{FeatureInit::kLeverage, "leverage"}, Name{FeatureInit::kPairs, "pairs"}};
};

// What leverage scores are taken on.
struct Leverage {
  std::function<Tensor(int64_t layer, int64_t head)> samples;  // queries and keys of a head, [J, D]
  GramScale gram = GramScale::kTrace;
  double lambda = kDefaultLambda;
};

struct FeatureOptions {
  FeatureMap map = FeatureMap::kPrf;
  FeatureInit init = FeatureInit::kIid;  // of kPrf and kUntied; the baselines have their own
  uint64_t seed = 0;
  Leverage leverage = {};  // for kLeverage
};

// All but kPairs. Untied features start with the same directions on both sides. Every head draws
// from a stream of its own, so that a head's features do not depend on how many its neighbours
// have.
FeatureSet init_features(const DimensionPlan& plan, const FeatureOptions& options);

}  // namespace dofla
