#include "dofla/plan/bound.h"

#include <cmath>

#include <gtest/gtest.h>

#include "tests/support/tables.h"

namespace dofla {
namespace {

TEST(FeaturesRequired, IsTheAppendixForm) {
  // N = 10, δ = 0.1, t = 0.5: 160 · log(25600).
  EXPECT_EQ(features_required(10, 0.1, 0.5),
            static_cast<int64_t>(std::ceil(160 * std::log(25600))));
  EXPECT_EQ(features_required(1e-6, 0.9, 3), 1);
  EXPECT_GT(features_required(10, 0.01, 0.5), features_required(10, 0.1, 0.5));
  EXPECT_THROW(features_required(0, 0.1, 1), std::invalid_argument);
  EXPECT_THROW(features_required(1, 0, 1), std::invalid_argument);
  EXPECT_THROW(features_required(1, 1, 1), std::invalid_argument);
  EXPECT_THROW(features_required(1, 0.1, 0), std::invalid_argument);
  EXPECT_THROW(features_required(1, 0.1, 3.5), std::invalid_argument);
  EXPECT_THROW(features_required(1, 0.1, 1e-200), std::invalid_argument);
}

TEST(ErrorRequired, IsTheOtherWayRound) {
  for (const int64_t M : {100, 1000, 100'000}) {
    const double t = *error_required(10, 0.1, M);
    EXPECT_NEAR(4 * 10 / (t * t) * std::log(64 * 10 / (0.1 * t * t)), static_cast<double>(M),
                1e-9 * static_cast<double>(M));
    EXPECT_EQ(features_required(10, 0.1, t), M);
  }
  // t = 3: 40/9 · log(6400/9) = 29.2.
  EXPECT_FALSE(error_required(10, 0.1, 29));
  EXPECT_TRUE(error_required(10, 0.1, 30));
  EXPECT_THROW(error_required(0, 0.1, 30), std::invalid_argument);
  EXPECT_THROW(error_required(10, 1, 30), std::invalid_argument);
}

// Eigenvalues ½ and ¼, λ = ¼, δ = 0.1, t = ½: trace ¾, squares 5/16.
TEST(TheoremBounds, FollowFromTheSpectrum) {
  const std::vector<double> spectrum = {0.5, 0.25};
  const double squared = 0.25 * 0.75 * 0.5 + 0.25 * 0.5 * (1 + 0.5 + 10) * 0.75;
  EXPECT_NEAR(kernel_error_bound(spectrum, 0.25, 0.1, 0.5), std::sqrt(squared / 0.3125), 1e-12);
  EXPECT_NEAR(sum_error_bound(spectrum, 0.25, 0.5), 0.5 * 0.75 / 0.5, 1e-12);
  EXPECT_THROW(kernel_error_bound({}, 1, 0.1, 1), std::invalid_argument);
  EXPECT_THROW(sum_error_bound({}, 1, 1), std::invalid_argument);
}

TEST(TheoremBounds, AreOfTheLargestHeadAndTheMeanOverItsDraws) {
  DofTable table = test::small_table();
  table.ladder = {8, 4000};
  for (size_t i = 0; i < 6; ++i) {
    const double here = 1 + static_cast<double>(i);
    table.errors.push_back({{here, here / 2}, {here / 4, here / 8}, 10 * here});
  }
  const std::vector<DofRow> rows = degrees_of_freedom(table, table.lambda);
  const std::vector<LayerBound> bounds = theorem_bounds(table, table.lambda, 0.2, 0.5);
  ASSERT_EQ(bounds.size(), 3u);
  for (size_t s = 0; s < 3; ++s) {
    const auto layer = static_cast<int64_t>(s);
    const double dof = rows[s].largest().mean;
    EXPECT_EQ(bounds[s].head, rows[s].largest_head);
    EXPECT_EQ(bounds[s].features, features_required(dof, 0.2, 0.5));
    double kernel = 0, sums = 0;
    for (int64_t r = 0; r < 2; ++r) {
      const auto& spectrum = table.spectrum(layer, bounds[s].head, r);
      kernel += kernel_error_bound(spectrum, table.lambda, 0.2, 0.5) / 2;
      sums += sum_error_bound(spectrum, table.lambda, 0.5) / 2;
    }
    EXPECT_NEAR(*bounds[s].kernel, kernel, 1e-12 * kernel);
    EXPECT_NEAR(*bounds[s].sums, sums, 1e-12 * sums);
    EXPECT_EQ(bounds[s].measured->largest_score,
              table.errors[s * 2 + static_cast<size_t>(bounds[s].head)].largest_score);
    EXPECT_EQ(bounds[s].error_required[0], error_required(dof, 0.2, 8));
    EXPECT_EQ(bounds[s].error_required[1], error_required(dof, 0.2, 4000));
  }
}

TEST(TheoremBounds, LeaveOutWhatWasNotMeasured) {
  DofTable table = test::small_table();
  EXPECT_FALSE(theorem_bounds(table, table.lambda, 0.1, 1)[0].measured);
  table.ladder = {8};
  table.errors.assign(6, {{1}, {1}, 1});
  EXPECT_TRUE(theorem_bounds(table, table.lambda, 0.1, 1)[0].measured);
  EXPECT_FALSE(theorem_bounds(table, 0x1p-4, 0.1, 1)[0].measured);  // errors are of another λ
  const DofTable from_gpu = test::with_values(test::small_table(), {0x1p-8});
  EXPECT_FALSE(theorem_bounds(from_gpu, 0x1p-8, 0.1, 1)[0].kernel);
}

}  // namespace
}  // namespace dofla
