#include "dofla/sensitivity/loss_curve.h"

#include <cmath>

#include <gtest/gtest.h>

#include "dofla/core/random.h"

namespace dofla {
namespace {

TEST(LossCurve, GoesThroughConvexPointsAndBetweenThemOnALogarithm) {
  const LossCurve curve({4, 16, 64}, {0.8, 0.4, 0.2});
  EXPECT_NEAR(curve.at(4), 0.8, 1e-12);
  EXPECT_NEAR(curve.at(16), 0.4, 1e-12);
  EXPECT_NEAR(curve.at(64), 0.2, 1e-12);
  EXPECT_NEAR(curve.at(8), 0.6, 1e-12);
  EXPECT_NEAR(curve.at(32), 0.3, 1e-12);
  EXPECT_NEAR(curve.at(1), 1.2, 1e-12);    // the first line goes on below
  EXPECT_NEAR(curve.at(256), 0.1, 1e-12);  // half for every factor 4, as at the end
}

TEST(LossCurve, TakesNoiseFromBelow) {
  // The second point would make it concave, the last one grow: the last two take their mean.
  const LossCurve curve({1, 2, 4, 8}, {0.8, 0.75, 0.2, 0.3});
  EXPECT_NEAR(curve.at(2), 0.525, 1e-12);
  EXPECT_NEAR(curve.at(4), 0.25, 1e-12);
  EXPECT_NEAR(curve.at(8), 0.25, 1e-12);
  // A lucky student of few features does not make all others look useless.
  const LossCurve lucky({16, 64, 256}, {0.14, 0.20, 0.14});
  EXPECT_NEAR(lucky.at(16), 0.17, 1e-12);
  EXPECT_NEAR(lucky.at(64), 0.155, 1e-12);
  EXPECT_NEAR(lucky.at(256), 0.14, 1e-12);
  const LossCurve none({1, 2}, {-0.1, -0.2});
  EXPECT_EQ(none.at(1), 0);
  EXPECT_EQ(none.at(100), 0);
  EXPECT_EQ(LossCurve({2, 4}, {0.1, -0.1}).at(8), 0);
}

TEST(LossCurve, NeverGrowsAndIsConvex) {
  Random random(5);
  for (int trial = 0; trial < 100; ++trial) {
    std::vector<double> added;
    for (int i = 0; i < 4; ++i) added.push_back(0.3 * random.normal() + 0.2);
    const LossCurve curve({3, 7, 20, 40}, added);
    for (int64_t M = 1; M < 120; ++M) {
      EXPECT_GE(curve.at(M), 0);
      EXPECT_GE(curve.gain(M), -1e-15) << M;
      EXPECT_LE(curve.gain(M + 1), curve.gain(M) + 1e-12) << M;
    }
  }
}

TEST(LossCurve, RefusesASinglePoint) {
  EXPECT_THROW(LossCurve({4}, {0.1}), std::invalid_argument);
  EXPECT_THROW(LossCurve({4, 8}, {0.1}), std::invalid_argument);
}

}  // namespace
}  // namespace dofla
