// Comparison of a float32 result with a double reference, under a tolerance that the test computes.
#pragma once

#include <cmath>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "dofla/core/tensor.h"

namespace dofla::reference {

// Every element finite and within its tolerance; reports the one that is furthest off.
inline void expect_near(const Tensor& actual, const std::vector<double>& expected,
                        const std::vector<double>& tolerance, std::string_view what) {
  ASSERT_EQ(actual.count(), static_cast<int64_t>(expected.size())) << what;
  ASSERT_EQ(tolerance.size(), expected.size()) << what;
  const float* data = actual.data<float>();
  double worst = -1;
  size_t at = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_TRUE(std::isfinite(data[i])) << what << " [" << i << "] is " << data[i];
    const double excess = std::abs(data[i] - expected[i]) - tolerance[i];
    if (i == 0 || excess > worst) worst = excess, at = i;
  }
  if (expected.empty()) return;
  EXPECT_LE(worst, 0) << what << " [" << at << "]: expected " << expected[at] << " within "
                      << tolerance[at] << ", found " << data[at];
}

inline void expect_near(const Tensor& actual, const std::vector<double>& expected, double tolerance,
                        std::string_view what) {
  expect_near(actual, expected, std::vector<double>(expected.size(), tolerance), what);
}

inline std::vector<double> scaled(std::vector<double> x, double factor) {
  for (double& value : x) value *= factor;
  return x;
}

}  // namespace dofla::reference
