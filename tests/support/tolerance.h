// Tolerances that follow from the arithmetic instead of from what happens to pass.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include <gtest/gtest.h>

#include "dofla/core/tensor.h"

namespace dofla::test {

inline constexpr double kFloat32Epsilon = std::numeric_limits<float>::epsilon();
inline constexpr double kFloat64Epsilon = std::numeric_limits<double>::epsilon();

inline double largest(const Tensor& x) {
  const Tensor wide = x.to(DType::kF64);
  double most = 0;
  for (int64_t i = 0; i < wide.count(); ++i)
    most = std::max(most, std::abs(std::as_const(wide).data<double>()[i]));
  return most;
}

// Rounding errors of a float32 sum of `length` terms add up like a random walk, √length ulps of
// the largest magnitude; `depth` such sums feed into each other. The factor 4 covers two
// implementations that both round, at two standard deviations.
inline double float32_tolerance(int64_t length, int64_t depth, double magnitude) {
  return 4 * kFloat32Epsilon * std::sqrt(static_cast<double>(length)) * static_cast<double>(depth) *
         magnitude;
}

// A sum of `length` products passes through values of √length times the largest product.
inline double product_tolerance(int64_t length, double a, double b) {
  return float32_tolerance(length, 1, std::sqrt(static_cast<double>(length)) * a * b);
}

// Every element within `tolerance`; NaN never is.
inline void expect_near(const Tensor& found, const Tensor& expected, double tolerance,
                        const std::string& what) {
  ASSERT_EQ(found.shape(), expected.shape()) << what;
  const Tensor a = found.to(DType::kF64), b = expected.to(DType::kF64);
  double worst = 0;
  int64_t at = -1;
  for (int64_t i = 0; i < a.count(); ++i) {
    const double off = std::abs(a.data<double>()[i] - b.data<double>()[i]);
    if (!(off <= worst)) worst = off, at = i;
    if (std::isnan(off)) break;
  }
  EXPECT_LE(worst, tolerance) << what << " at element " << at;
  EXPECT_FALSE(std::isnan(worst)) << what << " at element " << at;
}

}  // namespace dofla::test
