#include "dofla/distill/feature_init.h"

#include <cmath>

#include <gtest/gtest.h>

#include "dofla/core/random.h"
#include "dofla/dof/leverage.h"
#include "dofla/plan/allocate.h"

namespace dofla {
namespace {

const ModelIdentity kModel = {"gpt2", 2, 3, 8};

FeatureOptions with_seed(uint64_t seed) {
  FeatureOptions options;
  options.seed = seed;
  return options;
}

float first_of(const Tensor& tensor, int64_t at = 0) {
  return tensor.data<float>()[at];
}

TEST(FeatureInit, AHeadsFeaturesDoNotDependOnItsNeighbours) {
  DimensionPlan plan = fixed_plan(kModel, 4);
  const FeatureSet before = init_features(plan, with_seed(7));
  plan.heads[0][0] = 9;
  const FeatureSet after = init_features(plan, with_seed(7));
  const int64_t old_at = before.layers[0].offsets()[1], new_at = after.layers[0].offsets()[1];
  EXPECT_NE(old_at, new_at);
  for (int64_t i = 0; i < 4 * 8; ++i)
    EXPECT_EQ(first_of(before.layers[0].z, old_at * 8 + i),
              first_of(after.layers[0].z, new_at * 8 + i));
  EXPECT_EQ(after.layers[1].total(), 12);
}

TEST(FeatureInit, SeedsAndLayersDiffer) {
  const DimensionPlan plan = fixed_plan(kModel, 4);
  const FeatureSet a = init_features(plan, with_seed(1)), b = init_features(plan, with_seed(2));
  EXPECT_NE(first_of(a.layers[0].z), first_of(b.layers[0].z));
  EXPECT_NE(first_of(a.layers[0].z), first_of(a.layers[1].z));
}

TEST(FeatureInit, OnlyDijiangLeavesOutTheNormTerm) {
  FeatureOptions options = with_seed(1);
  EXPECT_TRUE(init_features(fixed_plan(kModel, 4), options).layers[0].subtract_norm);
  options.map = FeatureMap::kDijiang;
  EXPECT_FALSE(init_features(fixed_plan(kModel, 4), options).layers[0].subtract_norm);
}

// α = 1/q, q the leverage score over its mean N_λ under the normal density.
TEST(FeatureInit, LeverageWeightsAreInverseToTheScore) {
  Random random(5);
  Tensor samples({64, 8});
  for (int64_t i = 0; i < samples.count(); ++i)
    samples.data<float>()[i] = static_cast<float>(random.normal());
  FeatureOptions options = with_seed(3);
  options.init = FeatureInit::kLeverage;
  options.leverage.samples = [&](int64_t, int64_t) { return samples; };
  const FeatureSet set = init_features(fixed_plan(kModel, 32), options);

  const RidgeKernel kernel(samples, options.leverage.gram, options.leverage.lambda);
  const Features& layer = set.layers[0];
  const std::vector<double> drawn = kernel.log_scores(layer.z.slice(0, 32));
  for (int64_t m = 0; m < 32; ++m)
    EXPECT_NEAR(first_of(layer.log_alpha, m),
                std::log(kernel.dof()) - drawn[static_cast<size_t>(m)], 1e-6)
        << "feature " << m;
  options.init = FeatureInit::kPairs;  // another class draws these
  EXPECT_THROW(init_features(fixed_plan(kModel, 32), options), std::invalid_argument);
  options.init = FeatureInit::kLeverage;
  options.leverage.samples = {};
  EXPECT_THROW(init_features(fixed_plan(kModel, 32), options), std::invalid_argument);
}

}  // namespace
}  // namespace dofla
