#include "dofla/plan/allocate.h"

#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include "dofla/core/error.h"
#include "dofla/core/random.h"
#include "tests/support/tables.h"

namespace dofla {
namespace {

int64_t sum(const std::vector<int64_t>& x) {
  return std::accumulate(x.begin(), x.end(), int64_t{0});
}

TEST(Allocate, LayersInProportionToTheirDof) {
  EXPECT_EQ(allocate_layers({10, 20, 30}, 64), (std::vector<int64_t>{32, 64, 96}));
  EXPECT_EQ(allocate_layers({1, 1, 2}, 10), (std::vector<int64_t>{8, 8, 15}));  // 7.5, 7.5, 15
}

// The layer maxima of the paper's table for GPT-2 (λ = 2⁻⁸), cost 64, by Algorithm 1.
TEST(Allocate, FollowsAlgorithmOneOnThePapersTable) {
  const std::vector<double> dof = {150.0, 173.8, 24.5, 39.8, 42.1, 66.6,
                                   107.4, 33.0,  24.9, 29.9, 43.2, 39.8};
  const std::vector<int64_t> M = allocate_layers(dof, 64);
  const double t_inverse = 64 * 12 / std::accumulate(dof.begin(), dof.end(), 0.0);
  for (size_t s = 0; s < dof.size(); ++s) EXPECT_EQ(M[s], std::llround(t_inverse * dof[s]));
}

TEST(Allocate, NeverOverBudgetByMoreThanRounding) {
  Random random(1);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<double> dof(1 + random.below(40));
    for (double& value : dof) value = std::exp(6 * random.normal());
    const auto cost = static_cast<int64_t>(1 + random.below(100));
    const auto count = static_cast<int64_t>(dof.size());
    const std::vector<int64_t> layers = allocate_layers(dof, cost);
    EXPECT_LE(2 * sum(layers), 2 * count * cost + count);
    for (const int64_t M : layers) EXPECT_GE(M, 1);
    for (const double power : {0.0, 0.5, 1.0, 3.0}) {
      const std::vector<int64_t> heads = allocate_heads(dof, cost, power);
      EXPECT_EQ(sum(heads), count * cost);
      for (const int64_t M : heads) EXPECT_GE(M, 1);
    }
  }
}

TEST(Allocate, HeadsInProportionToAPowerOfTheirDof) {
  EXPECT_EQ(allocate_heads({1, 4, 4}, 12, 1), (std::vector<int64_t>{4, 16, 16}));
  EXPECT_EQ(allocate_heads({1, 4, 4}, 10, 0.5), (std::vector<int64_t>{6, 12, 12}));
  EXPECT_EQ(allocate_heads({1, 4, 9}, 7, 0), (std::vector<int64_t>{7, 7, 7}));
  EXPECT_EQ(allocate_heads({1, 1, 1, 1e6}, 2, 1), (std::vector<int64_t>{1, 1, 1, 5}));
  EXPECT_EQ(allocate_heads({1, 1e300}, 3, 50), (std::vector<int64_t>{1, 5}));
  EXPECT_EQ(allocate_heads({1, 1, 1}, 1, 1), (std::vector<int64_t>{1, 1, 1}));
}

TEST(Allocate, GivesEveryHeadTheLeast) {
  EXPECT_EQ(allocate_layers({1, 1, 10}, 12, 5), (std::vector<int64_t>{5, 5, 27}));
  EXPECT_EQ(allocate_heads({1, 1, 10}, 12, 1, 5), (std::vector<int64_t>{5, 5, 26}));
  EXPECT_EQ(allocate_heads({1, 2, 100}, 7, 1, 7), (std::vector<int64_t>{7, 7, 7}));
  Random random(2);
  for (int trial = 0; trial < 100; ++trial) {
    std::vector<double> dof(1 + random.below(40));
    for (double& value : dof) value = std::exp(6 * random.normal());
    const auto least = static_cast<int64_t>(1 + random.below(20));
    const auto cost = least + static_cast<int64_t>(random.below(40));
    const auto count = static_cast<int64_t>(dof.size());
    const std::vector<int64_t> layers = allocate_layers(dof, cost, least);
    EXPECT_LE(2 * sum(layers), 2 * count * cost + count);
    for (const int64_t M : layers) EXPECT_GE(M, least);
    const std::vector<int64_t> heads = allocate_heads(dof, cost, 1, least);
    EXPECT_EQ(sum(heads), count * cost);
    for (const int64_t M : heads) EXPECT_GE(M, least);
  }
}

TEST(Allocate, RefusesALeastThatTheCostDoesNotBuy) {
  const DofTable table = test::small_table();
  for (const PlanStrategy strategy :
       {PlanStrategy::kFix, PlanStrategy::kDof, PlanStrategy::kDofClip, PlanStrategy::kDofHead}) {
    AllocateOptions options = {.strategy = strategy, .cost = 8, .least = 9};
    EXPECT_THROW(allocate(table, options), Error);
    options.least = 0;
    EXPECT_THROW(allocate(table, options), Error);
    options.least = 3;
    const DimensionPlan plan = allocate(table, options);
    EXPECT_EQ(plan.least, 3);
    for (const auto& layer : plan.heads)
      for (const int64_t M : layer) EXPECT_GE(M, 3);
  }
  // Clipped at the head size of 16, no head can have more.
  EXPECT_THROW(allocate(table, {.strategy = PlanStrategy::kDofClip, .cost = 64, .least = 17}),
               Error);
  EXPECT_THROW(allocate(table, {.strategy = PlanStrategy::kSensitivity}), std::invalid_argument);
  EXPECT_THROW(allocate(table, {.memory = 1'000'000}), std::invalid_argument);
  EXPECT_THROW(allocate(table, {.strategy = PlanStrategy::kDof, .by = PlanUnit::kHead}),
               std::invalid_argument);
}

TEST(Allocate, RoundsTheLargestRemaindersUp) {
  // Shares 2.4, 4.8, 1.8: the last two round up.
  EXPECT_EQ(allocate_heads({4, 8, 3}, 3, 1), (std::vector<int64_t>{2, 5, 2}));
}

TEST(Allocate, EveryStrategy) {
  const DofTable table = test::table_with({{1, 10}, {30, 5}, {20, 20}}, 0x1p-8);
  const auto heads = [&](PlanStrategy strategy, std::optional<double> power = {}) {
    return allocate(table, {.strategy = strategy, .cost = 64, .power = power}).heads;
  };
  using Dims = std::vector<std::vector<int64_t>>;
  EXPECT_EQ(heads(PlanStrategy::kFix), (Dims{{64, 64}, {64, 64}, {64, 64}}));
  EXPECT_EQ(heads(PlanStrategy::kDof), (Dims{{32, 32}, {96, 96}, {64, 64}}));
  EXPECT_EQ(heads(PlanStrategy::kDofClip), (Dims{{32, 32}, {64, 64}, {64, 64}}));
  EXPECT_EQ(heads(PlanStrategy::kDofHead, 0), (Dims{{64, 64}, {64, 64}, {64, 64}}));
  const Dims each = heads(PlanStrategy::kDofHead);
  EXPECT_EQ(each[1][0], std::llround(384 * 30 / 86.0));
  int64_t total = 0;
  for (const auto& layer : each) total += sum(layer);
  EXPECT_EQ(total, 3 * 2 * 64);
}

TEST(Allocate, CarriesWhatItWasMadeFrom) {
  const DofTable table = test::small_table();
  const DimensionPlan plan =
      allocate(table, {.strategy = PlanStrategy::kDofHead, .cost = 16, .power = 0.5}, 0x1p-4);
  EXPECT_EQ(plan.model, table.model);
  EXPECT_EQ(plan.strategy, PlanStrategy::kDofHead);
  EXPECT_EQ(plan.cost, 16);
  EXPECT_EQ(plan.lambda, 0x1p-4);
  EXPECT_EQ(plan.power, 0.5);
  EXPECT_EQ(plan.mean(), 16);
}

TEST(Allocate, WhatIsLeftOutComesFromTheTable) {
  DofTable table = test::small_table();
  table.lambda = 0x1p-5;
  const DimensionPlan plan = allocate(table, {});
  EXPECT_EQ(plan.cost, table.model.head_size);
  EXPECT_EQ(plan.lambda, 0x1p-5);
  EXPECT_EQ(plan.strategy, PlanStrategy::kDof);
  EXPECT_EQ(plan.heads, allocate(table, {.cost = table.model.head_size}, 0x1p-5).heads);
  EXPECT_NE(plan.heads, allocate(table, {}, 0x1p-2).heads);
  EXPECT_EQ(allocate(table, {.strategy = PlanStrategy::kDofHead}).power, 1);
}

TEST(Allocate, APowerIsForDofHeadAlone) {
  const DofTable table = test::small_table();
  for (const PlanStrategy strategy :
       {PlanStrategy::kFix, PlanStrategy::kDof, PlanStrategy::kDofClip})
    EXPECT_THROW(allocate(table, {.strategy = strategy, .power = 1}), std::invalid_argument);
}

TEST(Allocate, RefusesBadOptions) {
  const DofTable table = test::small_table();
  EXPECT_THROW(allocate(table, {.cost = 0}), Error);
  EXPECT_THROW(allocate(table, {.cost = DimensionPlan::kLargestDimension + 1}), Error);
  EXPECT_THROW(allocate(table, {}, 0), Error);
  EXPECT_THROW(allocate(table, {.strategy = PlanStrategy::kDofHead, .power = -1}), Error);
  EXPECT_THROW(allocate(table, {.strategy = PlanStrategy::kDofHead, .power = std::nan("")}), Error);
  EXPECT_THROW(allocate_layers({}, 64), std::invalid_argument);
  EXPECT_THROW(allocate_heads({1, 0}, 64, 1), std::invalid_argument);
}

}  // namespace
}  // namespace dofla
