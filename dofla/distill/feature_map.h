// Features before training: how z and log α of every head are drawn.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

#include "dofla/distill/feature_set.h"
#include "dofla/dof/gram.h"
#include "dofla/plan/dimension_plan.h"

namespace dofla {

enum class FeatureInit {
  kIid,         // z ~ N(0, I), the density under which the features are unbiased
  kOrthogonal,  // orthogonal within blocks of D, with the norms of independent Gaussian vectors
  kLeverage,    // from a large Gaussian pool in proportion to the ridge leverage score
  kPairs,       // on the sums of queries and the keys they attend to: see pair_init.h
};

std::string_view name(FeatureInit init);  // "iid", "orthogonal", "leverage", "pairs"
std::optional<FeatureInit> feature_init_from_name(std::string_view name);

// The queries and keys of one head that leverage scores are taken on, [J, D].
using HeadSamples = std::function<Tensor(int64_t layer, int64_t head)>;

struct FeatureOptions {
  FeatureMap map = FeatureMap::kPrf;
  FeatureInit init = FeatureInit::kIid;  // for kPrf; the baselines have their own
  uint64_t seed = 0;
  GramScale gram = GramScale::kTrace;  // for kLeverage
  double lambda = 0x1p-8;              // for kLeverage
  HeadSamples samples;                 // for kLeverage
};

// All but kPairs. Every head draws from a stream of its own, so that a head's features do not
// depend on how many its neighbours have.
FeatureSet init_features(const DimensionPlan& plan, const FeatureOptions& options);

// One head's z, [M, D]: the pieces of init_features.
Tensor gaussian_directions(int64_t count, int64_t size, uint64_t seed, uint64_t stream);
Tensor orthogonal_directions(int64_t count, int64_t size, uint64_t seed, uint64_t stream);
Tensor dijiang_directions(int64_t count, int64_t size);

// x with P(N(0, 1) ≤ x) = probability, for a probability in (0, 1).
double normal_quantile(double probability);

}  // namespace dofla
