#include "dofla/dof/leverage.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <gtest/gtest.h>
#include <lapacke.h>

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
  const auto found = RidgeKernel(fixture.tensor("dof.x"), GramScale::kSamples, 0x1p-4)
                         .log_scores(fixture.tensor("leverage.z"));
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
    const auto found = RidgeKernel(samples, GramScale::kTrace, 0x1p-8).log_scores(candidates);
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
  const RidgeKernel kernel(samples, GramScale::kTrace, 0x1p-4);
  const auto scores = kernel.log_scores(candidates);
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
  EXPECT_NEAR(kernel.dof(), dof, 1e-6 * dof);  // the tolerance of the spectrum
}

// In one dimension the density can be added up on a grid: the share of the draws in every interval
// is its integral there. The samples are such that half of the mixture's terms are negative.
TEST(Leverage, DrawsHaveTheDensity) {
  constexpr int kSteps = 400;  // of the grid, an interval
  constexpr int64_t kDraws = 20'000;
  const Tensor samples = test::gaussian({12, 1}, 1, 6);
  const RidgeKernel kernel(samples, GramScale::kTrace, 0x1p-8);
  Random random(7);
  const Tensor z = kernel.draw(kDraws, random);
  double everywhere = 0;
  int64_t counted = 0;
  for (int bin = -12; bin < 12; ++bin) {
    Tensor grid({kSteps, 1}, DType::kF64);
    for (int i = 0; i < kSteps; ++i) grid.data<double>()[i] = bin + (i + 0.5) / kSteps;
    const auto scores = reference::log_leverage_scores(samples, grid, GramScale::kTrace, 0x1p-8L);
    double share = 0;
    for (int i = 0; i < kSteps; ++i) {
      const double at = grid.data<double>()[i];
      share += std::exp(static_cast<double>(scores[static_cast<size_t>(i)]) - at * at / 2) /
               (std::sqrt(2 * std::numbers::pi) * kernel.dof() * kSteps);
    }
    int64_t inside = 0;
    for (int64_t m = 0; m < kDraws; ++m)
      inside += std::floor(z.data<float>()[m]) == static_cast<float>(bin) ? 1 : 0;
    const double error = std::sqrt(share * (1 - share) / kDraws);
    EXPECT_NEAR(static_cast<double>(inside) / kDraws, share, 4 * error + 1e-5) << "from " << bin;
    everywhere += share;
    counted += inside;
  }
  EXPECT_NEAR(everywhere, 1, 1e-4);
  EXPECT_GT(counted, kDraws * 0.999);
}

// ∫ N(z) dz = 1 = E over the draws of N_λ/score, and K̂ with these weights is unbiased.
TEST(Leverage, WeightsOfTheDrawsMakeTheKernelUnbiased) {
  constexpr int64_t kDraws = 4000;
  const Tensor samples = test::gaussian({40, 4}, 1, 8).to(DType::kF64);
  const RidgeKernel kernel(samples, GramScale::kTrace, 0x1p-4);
  Random random(9);
  const Tensor z = kernel.draw(kDraws, random);
  const std::vector<double> scores = kernel.log_scores(z);
  const reference::Matrix gram = reference::gram(samples, GramScale::kNone);
  for (const auto& [i, j] : {std::pair<int64_t, int64_t>{0, 0}, {3, 17}, {-1, -1}}) {
    double mean = 0, square = 0;
    for (int64_t m = 0; m < kDraws; ++m) {
      double term = kernel.dof() / std::exp(scores[static_cast<size_t>(m)]);
      for (const int64_t row : {i, j}) {
        if (row < 0) continue;  // the integral of 1
        double along = 0, norm = 0;
        for (int64_t c = 0; c < 4; ++c) {
          const double x = samples.data<double>()[row * 4 + c];
          along += x * z.data<float>()[m * 4 + c] / std::sqrt(2.0);
          norm += x * x / 4;
        }
        term *= std::exp(along - norm);
      }
      mean += term / kDraws;
      square += term * term / kDraws;
    }
    const double expected =
        i < 0 ? 1 : static_cast<double>(gram[static_cast<size_t>(i)][static_cast<size_t>(j)]);
    const double error = std::sqrt((square - mean * mean) / kDraws);
    EXPECT_NEAR(mean, expected, 4 * error);
    EXPECT_LT(error, 0.2 * expected);
  }
}

TEST(Leverage, DrawsWhereTheKernelIsFarOutsideTheRangeOfDouble) {
  const Tensor samples = test::gaussian({50, 16}, 30, 2);  // K to e^thousands
  const RidgeKernel kernel(samples, GramScale::kTrace, 0x1p-4);
  Random random(1);
  const Tensor z = kernel.draw(20, random);
  for (const double score : kernel.log_scores(z)) EXPECT_TRUE(std::isfinite(score));
  // One sample holds the trace: all z lie at twice that sample, within the normal noise.
  const Tensor wide = samples.to(DType::kF64);
  double longest = 0;
  int64_t at = 0;
  for (int64_t i = 0; i < 50; ++i) {
    double square = 0;
    for (int64_t c = 0; c < 16; ++c) square += std::pow(wide.data<double>()[i * 16 + c], 2);
    if (square > longest) longest = square, at = i;
  }
  for (int64_t m = 0; m < 20; ++m)
    for (int64_t c = 0; c < 16; ++c)
      EXPECT_NEAR(z.data<float>()[m * 16 + c], wide.data<double>()[at * 16 + c], 6);
}

// The eigenvalues μ of (Σ − Σ̂) x = μ (Σ + λI) x, by LAPACK, on both sides of what Lanczos' method
// takes all steps for.
TEST(Leverage, ErrorsAreGeneralisedEigenvalues) {
  constexpr double kLambda = 0x1p-4;
  for (const int64_t J : {40, 200}) {
    const Tensor samples = test::gaussian({J, 4}, 0.7, 3).to(DType::kF64);
    const Tensor z = test::gaussian({9, 4}, 1, 5).to(DType::kF64);
    std::vector<double> log_alpha;
    for (int m = 0; m < 9; ++m) log_alpha.push_back(0.3 * m - 1);
    const std::vector<int64_t> ladder = {1, 4, 9};
    const std::vector<double> found =
        RidgeKernel(samples, GramScale::kTrace, kLambda).errors(z, log_alpha, ladder);
    const reference::Matrix gram = reference::gram(samples, GramScale::kTrace);
    const auto factor = static_cast<double>(reference::log_divisor(samples, GramScale::kTrace));
    for (size_t step = 0; step < ladder.size(); ++step) {
      std::vector<double> difference, ridge, values(static_cast<size_t>(J));
      for (size_t i = 0; i < gram.size(); ++i)
        for (size_t j = 0; j < gram.size(); ++j) {
          double approximate = 0;
          for (int64_t m = 0; m < ladder[step]; ++m) {
            double exponent = log_alpha[static_cast<size_t>(m)] - factor;
            for (const size_t row : {i, j})
              for (size_t c = 0; c < 4; ++c) {
                const double x = samples.data<double>()[row * 4 + c];
                exponent += x * z.data<double>()[m * 4 + static_cast<int64_t>(c)] / std::sqrt(2.0) -
                            x * x / 4;
              }
            approximate += std::exp(exponent) / static_cast<double>(ladder[step]);
          }
          difference.push_back(static_cast<double>(gram[i][j]) - approximate);
          ridge.push_back(static_cast<double>(gram[i][j]) + (i == j ? kLambda : 0));
        }
      const auto n = static_cast<lapack_int>(J);
      ASSERT_EQ(LAPACKE_dsygv(LAPACK_COL_MAJOR, 1, 'N', 'L', n, difference.data(), n, ridge.data(),
                              n, values.data()),
                0);
      const double expected = std::max(std::abs(values.front()), std::abs(values.back()));
      EXPECT_NEAR(found[step], expected, 1e-9 * expected) << J << " samples, M = " << ladder[step];
    }
  }
}

TEST(Leverage, RefusesMisuse) {
  const Tensor samples = test::gaussian({10, 4}, 1, 1);
  const RidgeKernel kernel(samples, GramScale::kTrace, 1);
  EXPECT_THROW(kernel.log_scores(Tensor::zeros({3, 5})), std::invalid_argument);
  EXPECT_THROW(RidgeKernel(samples, GramScale::kTrace, 0), std::invalid_argument);
  const std::vector<double> weights(3);
  EXPECT_THROW(kernel.errors(Tensor::zeros({4, 4}), weights, std::vector<int64_t>{1}),
               std::invalid_argument);
  EXPECT_THROW(kernel.errors(Tensor::zeros({3, 4}), weights, std::vector<int64_t>{4}),
               std::invalid_argument);
}

}  // namespace
}  // namespace dofla
