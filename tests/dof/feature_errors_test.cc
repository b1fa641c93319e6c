#include "dofla/dof/feature_errors.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "dofla/features/feature_map.h"
#include "dofla/plan/bound.h"
#include "tests/support/matrices.h"

namespace dofla {
namespace {

constexpr int64_t kWidth = 4;

RidgeKernel kernel_of(double scale) {
  return RidgeKernel(test::gaussian({60, kWidth}, scale, 11), GramScale::kTrace, 0x1p-6);
}

// What the theorem promises but for one draw in a million holds, with room on both sides: features
// whose weights are off by a factor of N_λ would be further away.
TEST(FeatureErrors, KeepTheTheorem) {
  const RidgeKernel kernel = kernel_of(0.8);
  const FeatureErrors errors = feature_errors(kernel, {8, 4000}, kWidth, 1, 2);
  const double allowed = *error_required(kernel.dof(), 1e-6, 4000);
  EXPECT_LT(allowed, 1 - 1 / kernel.dof());
  EXPECT_LE(errors.leverage[1], allowed);
  EXPECT_LT(errors.leverage[1], errors.leverage[0]);
}

// Gaussian features do as well where all samples are short, and see nothing where they are long.
TEST(FeatureErrors, OfGaussianFeaturesDependOnTheLengthOfTheSamples) {
  const RidgeKernel near = kernel_of(0.2), far = kernel_of(6);
  EXPECT_LT(feature_errors(near, {8, 2000}, kWidth, 1, 2).gaussian[1], 0.1);
  const FeatureErrors errors = feature_errors(far, {8, 2000}, kWidth, 1, 2);
  EXPECT_GT(errors.gaussian[1], 0.5);
  const std::vector<double> scores = far.log_scores(gaussian_directions(2000, kWidth, 1, 2));
  EXPECT_EQ(errors.largest_score, std::exp(*std::max_element(scores.begin(), scores.end())));
}

}  // namespace
}  // namespace dofla
