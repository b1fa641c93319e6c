// Comparison of a float32 result with a double reference, under a tolerance that the test computes.
#pragma once

#include <cmath>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "dofla/core/tensor.h"

namespace dofla::reference {

// Every element finite and within `tolerance`; reports the worst one.
inline void expect_near(const Tensor& actual, const std::vector<double>& expected, double tolerance,
                        std::string_view what) {
  ASSERT_EQ(actual.count(), static_cast<int64_t>(expected.size())) << what;
  const float* data = actual.data<float>();
  double worst = -1;
  size_t at = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_TRUE(std::isfinite(data[i])) << what << " [" << i << "] is " << data[i];
    const double error = std::abs(data[i] - expected[i]);
    if (error > worst) worst = error, at = i;
  }
  if (expected.empty()) return;
  if (std::getenv("SHOW"))
    printf("%s: %.3g of %.3g\n", std::string(what).c_str(), worst, tolerance);
  EXPECT_LE(worst, tolerance) << what << " [" << at << "]: expected " << expected[at] << ", found "
                              << data[at];
}

}  // namespace dofla::reference
