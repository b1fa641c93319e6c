#include "dofla/report/from_dof_table.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "dofla/core/error.h"
#include "dofla/plan/allocate.h"
#include "dofla/plan/bound.h"
#include "tests/support/tables.h"

namespace dofla {
namespace {

DimensionPlan plan_with(const DofTable& table, PlanStrategy strategy) {
  AllocateOptions options = {.strategy = strategy, .cost = 16};
  if (strategy == PlanStrategy::kDofHead) options.power = 0.5;
  return allocate(table, options);
}

TEST(FromDofTable, KeepsTheEstimates) {
  const DofTable table = test::small_table();
  const std::vector<DofRow> rows = degrees_of_freedom(table, 0x1p-6);
  const DofSection section = from_dof_table(table, 0x1p-6);
  EXPECT_EQ(section.lambda, 0x1p-6);
  EXPECT_EQ(section.gram, "trace");
  EXPECT_EQ(section.samples, 60);
  EXPECT_EQ(section.draws, 2);
  ASSERT_EQ(section.layers.size(), 3u);
  for (size_t s = 0; s < 3; ++s) {
    ASSERT_EQ(section.layers[s].heads.size(), 2u);
    for (size_t h = 0; h < 2; ++h) {
      EXPECT_EQ(section.layers[s].heads[h].dof, rows[s].heads[h].mean);
      EXPECT_EQ(section.layers[s].heads[h].spread, rows[s].heads[h].spread);
    }
  }
}

TEST(FromDofTable, TakesMeanSpectraAtPowersOfTwo) {
  const DofTable table = test::small_table();
  const Curve spectrum = from_dof_table(table, 0x1p-8).layers[1].heads[1].spectrum;
  for (const double rank : {1.0, 2.0, 4.0, 8.0}) {
    const auto i = static_cast<size_t>(rank) - 1;
    const double mean = (table.spectrum(1, 1, 0)[i] + table.spectrum(1, 1, 1)[i]) / 2;
    const auto at = std::find_if(spectrum.begin(), spectrum.end(),
                                 [&](const CurvePoint& point) { return point.x == rank; });
    ASSERT_NE(at, spectrum.end()) << rank;
    EXPECT_EQ(at->y, mean);
  }
  for (size_t i = 1; i < spectrum.size(); ++i) EXPECT_LT(spectrum[i - 1].x, spectrum[i].x);
}

TEST(FromDofTable, SweepsLambdaOverWhatTheTableKnows) {
  const DofTable table = test::small_table();
  const Curve curve = from_dof_table(table, 0x1p-8).layers[2].dof_by_lambda;
  ASSERT_EQ(curve.size(), 17u);
  EXPECT_EQ(curve.front().x, 0x1p-16);
  EXPECT_EQ(curve.back().x, 1);
  EXPECT_EQ(curve[8].y, degrees_of_freedom(table, 0x1p-8)[2].largest().mean);
}

// Of the largest head; where the theorem says nothing of an M, its curve leaves it out.
TEST(FromDofTable, HasTheErrorsOfTheLargestHead) {
  DofTable table = test::small_table();
  EXPECT_TRUE(from_dof_table(table, 0x1p-8).layers[0].leverage_error.empty());
  table.ladder = {2, 4000};
  for (size_t i = 0; i < 6; ++i)
    table.errors.push_back({{1.0 + static_cast<double>(i), 0.5}, {0.25, 0.125}, 3});
  const LayerDof layer = from_dof_table(table, 0x1p-8).layers[1];
  const DofRow row = degrees_of_freedom(table, 0x1p-8)[1];
  ASSERT_EQ(layer.gaussian_error.size(), 2u);
  EXPECT_EQ(layer.gaussian_error[0].x, 2);
  EXPECT_EQ(layer.gaussian_error[0].y, 3.0 + static_cast<double>(row.largest_head));
  EXPECT_EQ(layer.leverage_error[1].y, 0.125);
  ASSERT_EQ(layer.error_bound.size(), 1u);
  EXPECT_EQ(layer.error_bound[0].x, 4000);
  EXPECT_EQ(layer.error_bound[0].y, *error_required(row.largest().mean, 0.1, 4000));
  EXPECT_TRUE(from_dof_table(table, 0x1p-4).layers[1].leverage_error.empty());  // another λ
}

TEST(FromDofTable, DoesWithoutSpectra) {
  const DofTable table = test::with_values(test::small_table(), {1.0, 0x1p-4, 0x1p-8});
  const DofSection section = from_dof_table(table, 0x1p-8);
  EXPECT_TRUE(section.layers[1].heads[1].spectrum.empty());
  EXPECT_EQ(section.layers[1].dof_by_lambda.size(), 3u);
}

TEST(FromDofTable, RefusesALambdaThatTheTableCannotAnswerFor) {
  EXPECT_THROW(from_dof_table(test::small_table(), 0x1p-20), Error);
}

TEST(FromDimensionPlan, CarriesTheSpreadOver) {
  const DofTable table = test::small_table();
  const DofRow row = degrees_of_freedom(table, 0x1p-8)[0];
  const double share = row.largest().spread / row.largest().mean;
  ASSERT_GT(share, 0);

  const PlanSection dof = from_dimension_plan(plan_with(table, PlanStrategy::kDof), &table);
  EXPECT_EQ(dof.strategy, "dof");
  EXPECT_EQ(dof.cost, 16);
  EXPECT_DOUBLE_EQ(dof.layers[0].spread, static_cast<double>(dof.layers[0].heads[0]) * share);

  const PlanSection fix = from_dimension_plan(plan_with(table, PlanStrategy::kFix), &table);
  EXPECT_EQ(fix.layers[0].heads, (std::vector<int64_t>{16, 16}));
  EXPECT_EQ(fix.layers[0].spread, 0);

  const PlanSection each = from_dimension_plan(plan_with(table, PlanStrategy::kDofHead), &table);
  double squares = 0;
  for (size_t h = 0; h < 2; ++h)
    squares += std::pow(static_cast<double>(each.layers[0].heads[h]) * 0.5 * row.heads[h].spread /
                            row.heads[h].mean,
                        2);
  EXPECT_DOUBLE_EQ(each.layers[0].spread, std::sqrt(squares) / 2);
}

TEST(FromDimensionPlan, AClippedDimensionDoesNotMove) {
  const DofTable table = test::small_table();
  const DimensionPlan plan = plan_with(table, PlanStrategy::kDofClip);
  const PlanSection section = from_dimension_plan(plan, &table);
  bool clipped = false;
  for (const LayerPlan& layer : section.layers) {
    EXPECT_EQ(layer.spread == 0, layer.heads[0] == table.model.head_size);
    clipped = clipped || layer.spread == 0;
  }
  EXPECT_TRUE(clipped);
}

TEST(FromDimensionPlan, StandsAloneWithoutSpread) {
  const DimensionPlan plan = plan_with(test::small_table(), PlanStrategy::kDof);
  const PlanSection section = from_dimension_plan(plan, nullptr);
  ASSERT_EQ(section.layers.size(), 3u);
  EXPECT_EQ(section.layers[0].spread, 0);
  for (size_t s = 0; s < 3; ++s) EXPECT_EQ(section.layers[s].cost, plan.token_cost(s));
}

TEST(FromDimensionPlan, RefusesAnotherModelsTable) {
  const DimensionPlan plan = plan_with(test::small_table(), PlanStrategy::kDof);
  const DofTable other = test::table_with({{2, 3}}, 0x1p-8);
  EXPECT_THROW(from_dimension_plan(plan, &other), Error);
}

}  // namespace
}  // namespace dofla
