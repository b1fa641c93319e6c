#include "dofla/dof/gram.h"

#include <cmath>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include "tests/reference/dof.h"
#include "tests/support/matrices.h"
#include "tests/support/tolerance.h"

namespace dofla {
namespace {

// The exponent is a sum of D products of size up to `largest_log`; exp turns its absolute error
// into a relative one. The last term is that of exp itself.
double tolerance(int64_t D, double largest_log) {
  return 4 * test::kFloat64Epsilon * (std::sqrt(static_cast<double>(D)) * largest_log + 1);
}

TEST(Gram, EveryScaleAgreesWithPlainLoops) {
  for (const int64_t J : {1, 63, 64, 65}) {
    const Tensor samples = test::gaussian({J, 16}, 1.2, 5);
    const auto largest = static_cast<double>(reference::log_divisor(samples, GramScale::kMax));
    for (const GramScale scale :
         {GramScale::kTrace, GramScale::kMax, GramScale::kSamples, GramScale::kNone}) {
      const PsdMatrix matrix = gram_matrix(kernel_samples(samples, scale));
      const reference::Matrix expected = reference::gram(samples, scale);
      const std::vector<double> lower = lower_triangle(matrix);
      for (int64_t j = 0; j < J; ++j) {
        const auto diagonal =
            static_cast<double>(expected[static_cast<size_t>(j)][static_cast<size_t>(j)]);
        EXPECT_NEAR(matrix.diagonal[static_cast<size_t>(j)], diagonal,
                    tolerance(16, largest) * diagonal);
        for (int64_t i = j; i < J; ++i) {
          const auto entry =
              static_cast<double>(expected[static_cast<size_t>(i)][static_cast<size_t>(j)]);
          EXPECT_NEAR(lower[static_cast<size_t>(j * J + i)], entry, tolerance(16, largest) * entry)
              << name(scale) << " " << i << " " << j;
        }
      }
    }
  }
}

TEST(Gram, StaysFiniteWhenScaledBy30) {
  const Tensor samples = test::gaussian({200, 64}, 30, 6);
  for (const GramScale scale : {GramScale::kTrace, GramScale::kMax}) {
    const PsdMatrix matrix = gram_matrix(kernel_samples(samples, scale));
    for (const double value : matrix.diagonal) EXPECT_TRUE(value >= 0 && value <= 1);
  }
  const PsdMatrix trace = gram_matrix(kernel_samples(samples, GramScale::kTrace));
  const auto largest = static_cast<double>(reference::log_divisor(samples, GramScale::kMax));
  EXPECT_NEAR(std::accumulate(trace.diagonal.begin(), trace.diagonal.end(), 0.0), 1,
              tolerance(64, largest));
}

TEST(Gram, SaysSoWhenItDoesNotFit) {
  const Tensor samples = test::gaussian({20, 64}, 30, 6);
  for (const GramScale scale : {GramScale::kSamples, GramScale::kNone}) {
    try {
      kernel_samples(samples, scale);
      FAIL() << "expected an error";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("use trace or max"), std::string::npos);
    }
  }
}

TEST(Gram, RefusesSamplesThatAreNotFinite) {
  Tensor samples = test::gaussian({4, 8}, 1, 1);
  samples.data<float>()[9] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(kernel_samples(samples, GramScale::kTrace), Error);
  EXPECT_THROW(kernel_samples(Tensor({0, 8}), GramScale::kTrace), std::invalid_argument);
  EXPECT_THROW(kernel_samples(Tensor({8}), GramScale::kTrace), std::invalid_argument);
}

TEST(Gram, NamesComeBack) {
  for (const GramScale scale :
       {GramScale::kTrace, GramScale::kMax, GramScale::kSamples, GramScale::kNone})
    EXPECT_EQ(find_named<GramScale>(name(scale)), scale);
  EXPECT_FALSE(find_named<GramScale>("Trace"));
}

}  // namespace
}  // namespace dofla
