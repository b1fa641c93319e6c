#include "dofla/dof/pivoted_cholesky.h"

#include <cmath>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include "dofla/dof/estimate.h"
#include "tests/support/matrices.h"

namespace dofla {
namespace {

std::vector<double> geometric(int64_t count, double ratio) {
  std::vector<double> out(static_cast<size_t>(count), 1.0);
  for (size_t i = 1; i < out.size(); ++i) out[i] = out[i - 1] * ratio;
  return out;
}

// Σ − F Fᵀ at (i, j).
double left_over(const PsdMatrix& matrix, const LowRankFactor& factor, int64_t i, int64_t j) {
  std::vector<double> column(static_cast<size_t>(matrix.size));
  const int64_t which[] = {j};
  matrix.columns(which, 0, column.data(), matrix.size);
  double value = column[static_cast<size_t>(i)];
  for (int64_t k = 0; k < factor.rank; ++k)
    value -= factor.columns[static_cast<size_t>(k * matrix.size + i)] *
             factor.columns[static_cast<size_t>(k * matrix.size + j)];
  return value;
}

TEST(PivotedCholesky, LeavesOverTheTraceThatItSays) {
  const PsdMatrix matrix = test::with_spectrum(geometric(300, 0.9), 3);
  const auto factor = pivoted_cholesky(matrix, 1e-6, 300);
  ASSERT_TRUE(factor);
  EXPECT_LE(factor->residual, 1e-6);
  double trace = 0;
  for (int64_t i = 0; i < matrix.size; ++i) trace += left_over(matrix, *factor, i, i);
  const double rounding = 300 * std::numeric_limits<double>::epsilon() *
                          std::accumulate(matrix.diagonal.begin(), matrix.diagonal.end(), 0.0);
  EXPECT_NEAR(factor->residual, trace, rounding);
}

TEST(PivotedCholesky, ErrorBoundHolds) {
  const PsdMatrix matrices[] = {
      test::with_spectrum(geometric(200, 0.8), 4), test::with_spectrum(geometric(200, 0.95), 5),
      gram_matrix(kernel_samples(test::gaussian({200, 64}, 3, 1), GramScale::kTrace)),
      gram_matrix(kernel_samples(test::gaussian({200, 4}, 1, 2), GramScale::kTrace))};
  for (const PsdMatrix& matrix : matrices)
    for (const double wanted : {1e-2, 1e-5, 1e-9}) {
      // A rank beyond reach keeps it from giving up on slow decay.
      const auto factor = pivoted_cholesky(matrix, wanted, 10 * matrix.size);
      ASSERT_TRUE(factor);
      // F Fᵀ as a matrix of its own.
      std::vector<double> product(static_cast<size_t>(matrix.size * matrix.size), 0.0);
      for (int64_t k = 0; k < factor->rank; ++k)
        for (int64_t i = 0; i < matrix.size; ++i)
          for (int64_t j = 0; j < matrix.size; ++j)
            product[static_cast<size_t>(i * matrix.size + j)] +=
                factor->columns[static_cast<size_t>(k * matrix.size + i)] *
                factor->columns[static_cast<size_t>(k * matrix.size + j)];
      const auto exact = dense_spectrum(matrix);
      const auto low = dense_spectrum(test::explicit_matrix(product, matrix.size));
      for (const double lambda : {1.0, 0x1p-4, 0x1p-8, 0x1p-16}) {
        const double rounding = rounding_error(exact, matrix.size, lambda);
        const double error = degrees_of_freedom(exact, lambda) - degrees_of_freedom(low, lambda);
        EXPECT_GE(error, -rounding);
        EXPECT_LE(error, factor->residual / lambda + rounding);
      }
    }
}

TEST(PivotedCholesky, FindsTheRankOfRepeatedSamples) {
  const Tensor few = test::gaussian({5, 16}, 1, 8);
  Tensor repeated({100, 16});
  for (int64_t i = 0; i < repeated.count(); ++i)
    repeated.data<float>()[i] = std::as_const(few).data<float>()[i % few.count()];
  const auto factor =
      pivoted_cholesky(gram_matrix(kernel_samples(repeated, GramScale::kTrace)), 1e-12, 50);
  ASSERT_TRUE(factor);
  EXPECT_EQ(factor->rank, 5);
}

TEST(PivotedCholesky, GivesUpOnFullRank) {
  std::vector<double> identity(200 * 200, 0.0);
  for (size_t i = 0; i < 200; ++i) identity[i * 200 + i] = 1;
  EXPECT_FALSE(pivoted_cholesky(test::explicit_matrix(identity, 200), 1e-6, 140));
}

}  // namespace
}  // namespace dofla
