#include "dofla/dof/estimate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include <cblas.h>
#include <lapacke.h>

#include "dofla/core/error.h"
#include "dofla/core/parallel.h"
#include "dofla/dof/pivoted_cholesky.h"

namespace dofla {
namespace {

constexpr double kEpsilon = std::numeric_limits<double>::epsilon();

// Eigenvalues of a symmetric matrix given by its lower triangle, largest first.
std::vector<double> eigenvalues(std::vector<double> lower, int64_t size) {
  std::vector<double> values(static_cast<size_t>(size));
  const lapack_int info =
      LAPACKE_dsyevd(LAPACK_COL_MAJOR, 'N', 'L', static_cast<lapack_int>(size), lower.data(),
                     static_cast<lapack_int>(size), values.data());
  if (info != 0) fail("the eigenvalues of a Gram matrix did not converge (LAPACK says {})", info);
  for (double& value : values) value = std::max(value, 0.0);
  std::reverse(values.begin(), values.end());
  return values;
}

std::vector<double> factor_spectrum(const LowRankFactor& factor, int64_t size) {
  const auto rank = static_cast<int>(factor.rank), n = static_cast<int>(size);
  std::vector<double> inner(static_cast<size_t>(factor.rank * factor.rank));
  cblas_dsyrk(CblasColMajor, CblasLower, CblasTrans, rank, n, 1.0, factor.columns.data(), n, 0.0,
              inner.data(), rank);
  return eigenvalues(std::move(inner), factor.rank);
}

// Past this part of the size, factor and small eigenproblem together save nothing over the whole.
int64_t largest_useful_rank(int64_t size) {
  return size * 6 / 10;
}

// Leaves out the smallest eigenvalues while their sum moves N_λ by less than `share` of it.
void drop_tail(std::vector<double>& values, double lambda, double share) {
  const double allowed = share * lambda * degrees_of_freedom(values, lambda);
  double dropped = 0;
  while (values.size() > 1 && (dropped += values.back()) <= allowed) values.pop_back();
}

}  // namespace

std::vector<double> dense_spectrum(const PsdMatrix& matrix) {
  const SingleThreaded one_thread;
  return eigenvalues(lower_triangle(matrix), matrix.size);
}

std::vector<double> spectrum(const PsdMatrix& matrix, const SpectrumAccuracy& accuracy) {
  const double lambda = accuracy.smallest_lambda, half = accuracy.tolerance / 2;
  require(lambda > 0 && std::isfinite(lambda), "λ: expected a positive number, found {}", lambda);
  require(half > 0, "tolerance: expected a positive number, found {}", accuracy.tolerance);
  const SingleThreaded one_thread;

  // Among all spectra with the trace of Σ, the one with a single eigenvalue has the least N_λ.
  const double trace = std::accumulate(matrix.diagonal.begin(), matrix.diagonal.end(), 0.0);
  const double residual_wanted = half * lambda * trace / (trace + lambda);
  const double rounding = static_cast<double>(matrix.size) * kEpsilon * trace;
  std::optional<LowRankFactor> factor;
  if (residual_wanted > rounding)
    factor = pivoted_cholesky(matrix, residual_wanted, largest_useful_rank(matrix.size));

  std::vector<double> values =
      factor ? factor_spectrum(*factor, matrix.size) : dense_spectrum(matrix);
  if (values.empty() || !(values.front() > 0)) fail("the Gram matrix is zero");
  drop_tail(values, lambda, half);
  return values;
}

double degrees_of_freedom(std::span<const double> spectrum, double lambda) {
  require(lambda > 0 && std::isfinite(lambda), "λ: expected a positive number, found {}", lambda);
  double sum = 0;
  for (auto e = spectrum.rbegin(); e != spectrum.rend(); ++e) sum += *e / (*e + lambda);
  return sum;
}

double rounding_error(std::span<const double> spectrum, int64_t samples, double lambda) {
  if (spectrum.empty()) return 0;
  const double moved = std::sqrt(static_cast<double>(samples)) * kEpsilon * spectrum.front();
  const auto share = [&](double e) { return e / (e + lambda); };
  const auto left_out = static_cast<double>(samples) - static_cast<double>(spectrum.size());
  double error = left_out * share(moved);
  for (const double e : spectrum) error += share(e + moved) - share(std::max(e - moved, 0.0));
  return error;
}

double degrees_of_freedom(double gram_trace, double inverse_trace, int64_t samples, double lambda,
                          double largest_error) {
  const auto J = static_cast<double>(samples);
  const double dof = J - lambda * inverse_trace;
  const double error = std::sqrt(J) * kEpsilon * gram_trace * inverse_trace;
  return error <= largest_error * dof ? dof : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace dofla
