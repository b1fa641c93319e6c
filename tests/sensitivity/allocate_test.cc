#include "dofla/sensitivity/allocate.h"

#include <cmath>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include "dofla/core/error.h"
#include "dofla/core/random.h"
#include "tests/support/expect_error.h"
#include "tests/support/sensitivity_table.h"

namespace dofla {
namespace {

double total(const std::vector<LossCurve>& curves, const std::vector<int64_t>& M) {
  double sum = 0;
  for (size_t i = 0; i < curves.size(); ++i) sum += curves[i].at(M[i]);
  return sum;
}

// The smallest sum of the curves over all ways to spend `left` features on those from `at` on.
double best(const std::vector<LossCurve>& curves, size_t at, int64_t left, int64_t least) {
  if (at + 1 == curves.size()) return curves[at].at(left);
  const auto after = static_cast<int64_t>(curves.size() - at - 1);
  double lowest = std::numeric_limits<double>::infinity();
  for (int64_t M = least; M <= left - after * least; ++M)
    lowest = std::min(lowest, curves[at].at(M) + best(curves, at + 1, left - M, least));
  return lowest;
}

std::vector<LossCurve> random_curves(Random& random, size_t count) {
  std::vector<LossCurve> curves;
  for (size_t i = 0; i < count; ++i) {
    std::vector<double> added;  // noisy: it may grow, and be negative
    for (const double M : {2.0, 4.0, 9.0})
      added.push_back(std::exp(2 * random.normal()) / M + 0.02 * random.normal());
    curves.emplace_back(std::vector<int64_t>{2, 4, 9}, added);
  }
  return curves;
}

TEST(SpendFeatures, IsAsGoodAsTryingEverything) {
  Random random(3);
  for (int trial = 0; trial < 60; ++trial) {
    const std::vector<LossCurve> curves = random_curves(random, 1 + random.below(4));
    const auto least = static_cast<int64_t>(1 + random.below(3));
    const int64_t features =
        static_cast<int64_t>(curves.size()) * (least + static_cast<int64_t>(random.below(6)));
    const std::vector<int64_t> M = spend(curves, features, least);
    EXPECT_EQ(std::accumulate(M.begin(), M.end(), int64_t{0}), features);
    for (const int64_t one : M) EXPECT_GE(one, least);
    const double lowest = best(curves, 0, features, least);
    EXPECT_NEAR(total(curves, M), lowest, 1e-12 * (1 + lowest));
  }
}

TEST(SpendFeatures, SharesEvenlyWhatSavesTheSame) {
  const LossCurve curve({2, 8}, {0.5, 0.1}), flat({2, 8}, {0, 0});
  EXPECT_EQ(spend({curve, curve, curve}, 15, 1), (std::vector<int64_t>{5, 5, 5}));
  EXPECT_EQ(spend({curve, curve, curve}, 17, 1), (std::vector<int64_t>{6, 6, 5}));
  EXPECT_EQ(spend({flat, flat}, 9, 2), (std::vector<int64_t>{5, 4}));
  EXPECT_EQ(spend({flat, curve}, 20, 3), (std::vector<int64_t>{3, 17}));
}

TEST(AllocateBySensitivity, ByLayerAndByHeadSpendTheSame) {
  const SensitivityTable table = test::small_sensitivity();
  AllocateOptions options = {.strategy = PlanStrategy::kSensitivity, .cost = 6, .least = 2};
  const DimensionPlan heads = allocate(table, options);  // by head unless it is said otherwise
  options.by = PlanUnit::kLayer;
  const DimensionPlan layers = allocate(table, options);
  EXPECT_EQ(heads.by, PlanUnit::kHead);
  EXPECT_EQ(layers.by, PlanUnit::kLayer);
  for (const DimensionPlan& plan : {heads, layers}) {
    EXPECT_EQ(plan.strategy, PlanStrategy::kSensitivity);
    EXPECT_EQ(plan.mean(), 6);
    EXPECT_EQ(plan.least, 2);
    for (const auto& layer : plan.heads)
      for (const int64_t M : layer) EXPECT_GE(M, 2);
  }
  EXPECT_EQ(layers.heads[0][0], layers.heads[0][1]);
  EXPECT_GT(layers.heads[0][0], layers.heads[1][0]);
  EXPECT_GT(heads.heads[0][0], heads.heads[0][1]);
  EXPECT_EQ(heads.heads[1][0], heads.heads[1][1]);
  EXPECT_EQ(allocate(table, {.strategy = PlanStrategy::kSensitivity}).cost, 8);  // the head size
}

TEST(AllocateBySensitivity, PredictsTheLossOfAPlan) {
  const SensitivityTable table = test::small_sensitivity();
  const AllocateOptions by_layer = {
      .strategy = PlanStrategy::kSensitivity, .cost = 8, .by = PlanUnit::kLayer};
  DimensionPlan plan = allocate(table, by_layer);
  plan.heads = {{8, 8}, {4, 4}};  // the middle between 2 and 8, on a logarithm
  EXPECT_NEAR(predicted_loss(table, plan)[0], 0.2, 1e-12);
  EXPECT_NEAR(predicted_loss(table, plan)[1], 0.075, 1e-12);
  plan.by = PlanUnit::kHead;
  plan.heads = {{8, 2}, {4, 32}};  // beyond the last, by the power that led there
  EXPECT_NEAR(predicted_loss(table, plan)[0], 0.15 + 0.1, 1e-12);
  EXPECT_NEAR(predicted_loss(table, plan)[1], 0.0375 + 0.0125, 1e-12);
}

TEST(AllocateBySensitivity, RefusesWhatItCannotDo) {
  const SensitivityTable table = test::small_sensitivity();
  AllocateOptions options = {.strategy = PlanStrategy::kSensitivity, .cost = 4, .least = 5};
  test::expect_error([&] { allocate(table, options); }, {"cannot give every head 5"});
  options.least = 0;
  test::expect_error([&] { allocate(table, options); }, {"least"});
  options = {.strategy = PlanStrategy::kDof};
  EXPECT_THROW(allocate(table, options), std::invalid_argument);
  options = {.strategy = PlanStrategy::kSensitivity, .power = 2};
  EXPECT_THROW(allocate(table, options), std::invalid_argument);
}

}  // namespace
}  // namespace dofla
