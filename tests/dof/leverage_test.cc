#include "dofla/dof/leverage.h"

#include <cmath>

#include <gtest/gtest.h>

#include "dofla/checkpoint/safetensors.h"
#include "dofla/dof/estimate.h"
#include "tests/reference/dof.h"
#include "tests/support/fixtures.h"
#include "tests/support/matrices.h"

namespace dofla {
namespace {

// The fixture's scores are in L²(ρ) on the empirical measure, with λ = 2⁻⁴.
TEST(Leverage, AgreesWithTheFixtures) {
  const Safetensors fixture(test::fixtures() / "features.safetensors");
  const Tensor expected = fixture.tensor("leverage.score");
  const auto found = log_leverage_scores(fixture.tensor("dof.x"), fixture.tensor("leverage.z"),
                                         GramScale::kSamples, 0x1p-4);
  ASSERT_EQ(static_cast<int64_t>(found.size()), expected.count());
  for (size_t m = 0; m < found.size(); ++m)
    EXPECT_NEAR(std::exp(found[m]), expected.data<double>()[m], 1e-6 * expected.data<double>()[m]);
}

TEST(Leverage, AgreesWithPlainLoopsFarOutsideTheRangeOfDouble) {
  const Tensor candidates = test::gaussian({9, 16}, 1, 3);
  for (const double scale : {0.5, 30.0}) {
    const Tensor samples = test::gaussian({50, 16}, scale, 2);
    const auto expected =
        reference::log_leverage_scores(samples, candidates, GramScale::kTrace, 0x1p-8L);
    const auto found = log_leverage_scores(samples, candidates, GramScale::kTrace, 0x1p-8);
    // Exponents of this size are known to their own rounding; the rest is the solve, on a matrix
    // whose condition number is at most (1 + λ)/λ.
    const auto largest = static_cast<double>(reference::log_divisor(samples, GramScale::kMax));
    const double tolerance = 1e-15 * (8 * largest + 50 * 257);
    for (size_t m = 0; m < found.size(); ++m)
      EXPECT_NEAR(found[m], static_cast<double>(expected[m]), tolerance);
  }
}

// E over z of c φφᵀ is Σ, so the mean score is tr Σ(Σ+λI)⁻¹.
TEST(Leverage, MeanScoreIsTheDegreesOfFreedom) {
  const int64_t M = 4000;
  const Tensor samples = test::gaussian({40, 4}, 0.5, 4), candidates = test::gaussian({M, 4}, 1, 5);
  const auto scores = log_leverage_scores(samples, candidates, GramScale::kTrace, 0x1p-4);
  double mean = 0, square = 0;
  for (const double score : scores) {
    mean += std::exp(score) / M;
    square += std::exp(2 * score) / M;
  }
  const double standard_error = std::sqrt((square - mean * mean) / M);
  const double dof =
      degrees_of_freedom(spectrum(gram_matrix(kernel_samples(samples, GramScale::kTrace))), 0x1p-4);
  EXPECT_NEAR(mean, dof, 4 * standard_error);
  EXPECT_LT(standard_error, 0.1 * dof);
}

TEST(Leverage, RefusesMisuse) {
  const Tensor samples = test::gaussian({10, 4}, 1, 1);
  EXPECT_THROW(log_leverage_scores(samples, Tensor::zeros({3, 5}), GramScale::kTrace, 1),
               std::invalid_argument);
  EXPECT_THROW(log_leverage_scores(samples, Tensor::zeros({3, 4}), GramScale::kTrace, 0),
               std::invalid_argument);
}

}  // namespace
}  // namespace dofla
