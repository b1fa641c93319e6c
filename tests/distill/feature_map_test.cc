#include "dofla/distill/feature_map.h"

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

double row_product(const Tensor& z, int64_t a, int64_t b) {
  double sum = 0;
  for (int64_t c = 0; c < z.size(1); ++c)
    sum += double{z.data<float>()[a * z.size(1) + c]} * z.data<float>()[b * z.size(1) + c];
  return sum;
}

float first_of(const Tensor& tensor, int64_t at = 0) {
  return tensor.data<float>()[at];
}

TEST(FeatureMap, OrthogonalDirectionsAreOrthogonalWithinABlock) {
  const int64_t size = 16;
  const Tensor z = orthogonal_directions(40, size, 3, 0);
  for (int64_t a = 0; a < 40; ++a)
    for (int64_t b = a / size * size; b < a; ++b) {
      const double bound = 8 * 0x1p-24 * std::sqrt(row_product(z, a, a) * row_product(z, b, b));
      EXPECT_NEAR(row_product(z, a, b), 0, bound) << a << " " << b;
    }
}

TEST(FeatureMap, OrthogonalDirectionsHaveGaussianNorms) {
  const int64_t size = 16, count = 4000;
  const Tensor z = orthogonal_directions(count, size, 1, 0);
  double mean = 0;
  for (int64_t m = 0; m < count; ++m) mean += row_product(z, m, m) / count;
  // |z|² is chi-squared: mean D, variance 2D. Five standard errors.
  EXPECT_NEAR(mean, size, 5 * std::sqrt(2.0 * size / count));
}

TEST(FeatureMap, NormalQuantileInvertsTheDistribution) {
  EXPECT_NEAR(normal_quantile(0.5), 0, 1e-14);
  EXPECT_NEAR(normal_quantile(0.975), 1.959963984540054, 1e-12);  // published tables
  EXPECT_NEAR(normal_quantile(0.001), -3.090232306167814, 1e-12);
  EXPECT_THROW(normal_quantile(0), std::invalid_argument);
}

TEST(FeatureMap, DijiangRowsAreScaledCosines) {
  const int64_t size = 8;
  const Tensor z = dijiang_directions(20, size);
  for (int64_t a = 0; a < 20; ++a)
    for (int64_t b = a / size * size; b < a; ++b)
      EXPECT_NEAR(row_product(z, a, b), 0, 64 * 0x1p-24) << a << " " << b;
  // The second point of the low-discrepancy set is ¼.
  EXPECT_NEAR(std::sqrt(row_product(z, 1, 1)),
              std::pow(8.0, 0.25) * std::abs(normal_quantile(0.25)), 1e-6);
}

TEST(FeatureMap, AHeadsFeaturesDoNotDependOnItsNeighbours) {
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

TEST(FeatureMap, SeedsAndLayersDiffer) {
  const DimensionPlan plan = fixed_plan(kModel, 4);
  const FeatureSet a = init_features(plan, with_seed(1)), b = init_features(plan, with_seed(2));
  EXPECT_NE(first_of(a.layers[0].z), first_of(b.layers[0].z));
  EXPECT_NE(first_of(a.layers[0].z), first_of(a.layers[1].z));
}

TEST(FeatureMap, OnlyDijiangLeavesOutTheNormTerm) {
  FeatureOptions options = with_seed(1);
  EXPECT_TRUE(init_features(fixed_plan(kModel, 4), options).layers[0].subtract_norm);
  options.map = FeatureMap::kDijiang;
  EXPECT_FALSE(init_features(fixed_plan(kModel, 4), options).layers[0].subtract_norm);
}

// What is drawn has α = 1/q, q its score in units of the mean over the pool that it was drawn from.
// Drawing in proportion to q favours a large q, so the mean of 1/α over what was drawn is above
// its mean over the pool, which is 1.
TEST(FeatureMap, LeverageWeightsAreInverseToTheScore) {
  Random random(5);
  Tensor samples({64, 8});
  for (int64_t i = 0; i < samples.count(); ++i)
    samples.data<float>()[i] = static_cast<float>(random.normal());
  FeatureOptions options = with_seed(3);
  options.init = FeatureInit::kLeverage;
  options.samples = [&](int64_t, int64_t) { return samples; };
  const FeatureSet set = init_features(fixed_plan(kModel, 32), options);

  const auto scores = [&](const Tensor& z) {
    return log_leverage_scores(samples, z, options.gram, options.lambda);
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
  options.samples = {};
  EXPECT_THROW(init_features(fixed_plan(kModel, 32), options), std::invalid_argument);
}

}  // namespace
}  // namespace dofla
