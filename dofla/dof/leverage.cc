#include "dofla/dof/leverage.h"

#include <algorithm>
#include <cmath>

#include <cblas.h>
#include <lapacke.h>

#include "dofla/core/error.h"
#include "dofla/core/parallel.h"
#include "dofla/dof/vector_exp.h"

namespace dofla {
namespace {

// log φ, [J, M] column-major: one candidate a column.
std::vector<double> log_features(const KernelSamples& samples, const Tensor& candidates) {
  const auto J = static_cast<int>(samples.count), D = static_cast<int>(samples.width);
  const auto M = static_cast<int>(candidates.size(0));
  const Tensor z = candidates.to(DType::kF64);
  std::vector<double> out(static_cast<size_t>(samples.count * candidates.size(0)));
  cblas_dgemm(CblasColMajor, CblasTrans, CblasNoTrans, J, M, D, 1.0, samples.rows.data(), D,
              z.data<double>(), D, 0.0, out.data(), J);
  for (size_t i = 0; i < out.size(); ++i)
    out[i] -= 0.5 * samples.log_diagonal[i % samples.log_diagonal.size()];
  return out;
}

// The lower Cholesky factor of Σ + λI, column-major.
std::vector<double> ridge_factor(const PsdMatrix& matrix, double lambda) {
  std::vector<double> factor = lower_triangle(matrix);
  const int64_t n = matrix.size;
  for (int64_t i = 0; i < n; ++i) factor[static_cast<size_t>(i * n + i)] += lambda;
  const lapack_int info = LAPACKE_dpotrf(LAPACK_COL_MAJOR, 'L', static_cast<lapack_int>(n),
                                         factor.data(), static_cast<lapack_int>(n));
  if (info != 0)
    fail(
        "λ = {:g} is lost in the rounding of the Gram matrix: use Gram scale trace or max, or a "
        "larger λ",
        lambda);
  return factor;
}

}  // namespace

std::vector<double> log_leverage_scores(const Tensor& samples, const Tensor& candidates,
                                        GramScale scale, double lambda) {
  require(lambda > 0 && std::isfinite(lambda), "λ: expected a positive number, found {}", lambda);
  const KernelSamples kernel = kernel_samples(samples, scale);
  require_shape(candidates, {candidates.size(0), kernel.width}, "candidates");
  const SingleThreaded one_thread;
  const int64_t J = kernel.count, M = candidates.size(0);

  // Each candidate's features are divided by the largest of them, which is put back at the end.
  std::vector<double> features = log_features(kernel, candidates);
  std::vector<double> scores(static_cast<size_t>(M));
  for (int64_t m = 0; m < M; ++m) {
    double* column = features.data() + m * J;
    const double largest = *std::max_element(column, column + J);
    if (!std::isfinite(largest)) fail("candidate feature {} is not finite", m);
    exp_shifted(column, J, largest);
    scores[static_cast<size_t>(m)] = kernel.log_factor + 2 * largest;
  }
  const std::vector<double> factor = ridge_factor(gram_matrix(kernel), lambda);
  const auto rows = static_cast<int>(J);
  cblas_dtrsm(CblasColMajor, CblasLeft, CblasLower, CblasNoTrans, CblasNonUnit, rows,
              static_cast<int>(M), 1.0, factor.data(), rows, features.data(), rows);
  for (int64_t m = 0; m < M; ++m) {
    const double* column = features.data() + m * J;
    scores[static_cast<size_t>(m)] += std::log(cblas_ddot(rows, column, 1, column, 1));
  }
  return scores;
}

}  // namespace dofla
