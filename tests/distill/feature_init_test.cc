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

// What is drawn has α = 1/q, q its score in units of the mean over the pool that it was drawn from.
// Drawing in proportion to q favours a large q, so the mean of 1/α over what was drawn is above
// its mean over the pool, which is 1.
TEST(FeatureInit, LeverageWeightsAreInverseToTheScore) {
  Random random(5);
  Tensor samples({64, 8});
  for (int64_t i = 0; i < samples.count(); ++i)
    samples.data<float>()[i] = static_cast<float>(random.normal());
  FeatureOptions options = with_seed(3);
  options.init = FeatureInit::kLeverage;
  options.leverage.samples = [&](int64_t, int64_t) { return samples; };
  const FeatureSet set = init_features(fixed_plan(kModel, 32), options);

  const auto scores = [&](const Tensor& z) {
    return log_leverage_scores(samples, z, options.leverage.gram, options.leverage.lambda);
  };
  const int64_t pool = 1024;  // Gaussian directions of the head's own stream
  double pool_mean = 0;
  for (const double score : scores(gaussian_directions(pool, 8, options.seed, 0)))
    pool_mean += std::exp(score) / pool;
  const Features& layer = set.layers[0];
  const std::vector<double> drawn = scores(layer.z.slice(0, 32));
  double mean = 0;
  for (int64_t m = 0; m < 32; ++m) {
    const double q = std::exp(drawn[static_cast<size_t>(m)]) / pool_mean;
    EXPECT_NEAR(first_of(layer.log_alpha, m), -std::log(q), 1e-6) << "feature " << m;
    mean += q / 32;
  }
  EXPECT_GT(mean, 1);
  options.init = FeatureInit::kPairs;  // another class draws these
  EXPECT_THROW(init_features(fixed_plan(kModel, 32), options), std::invalid_argument);
  options.init = FeatureInit::kLeverage;
  options.leverage.samples = {};
  EXPECT_THROW(init_features(fixed_plan(kModel, 32), options), std::invalid_argument);
}

}  // namespace
}  // namespace dofla
