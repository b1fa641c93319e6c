#include "dofla/dof/leverage.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <cblas.h>
#include <lapacke.h>

#include "dofla/core/error.h"
#include "dofla/core/parallel.h"
#include "dofla/dof/operator_norm.h"
#include "dofla/dof/vector_exp.h"

namespace dofla {
namespace {

// Candidates that are drawn at once, and how many of them may be refused in a row.
constexpr int64_t kBatch = 64;
constexpr int64_t kMostRefused = 100'000;

// φ divided by its largest value, whose logarithm goes to `largest`: [J, M] column-major.
std::vector<double> shifted_features(const KernelSamples& samples, const Tensor& candidates,
                                     std::vector<double>& largest) {
  const auto J = static_cast<int>(samples.count), D = static_cast<int>(samples.width);
  const int64_t M = candidates.size(0);
  const Tensor z = candidates.to(DType::kF64);
  std::vector<double> out(static_cast<size_t>(samples.count * M));
  cblas_dgemm(CblasColMajor, CblasTrans, CblasNoTrans, J, static_cast<int>(M), D, 1.0,
              samples.rows.data(), D, z.data<double>(), D, 0.0, out.data(), J);
  largest.resize(static_cast<size_t>(M));
  for (int64_t m = 0; m < M; ++m) {
    double* column = out.data() + m * samples.count;
    for (size_t i = 0; i < samples.log_diagonal.size(); ++i)
      column[i] -= 0.5 * samples.log_diagonal[i];
    const double top = *std::max_element(column, column + samples.count);
    if (!std::isfinite(top)) fail("candidate feature {} is not finite", m);
    exp_shifted(column, samples.count, top);
    largest[static_cast<size_t>(m)] = top;
  }
  return out;
}

// The lower Cholesky factor of Σ + λI, column-major.
std::vector<double> ridge_factor(std::vector<double> gram, int64_t n, double lambda) {
  for (int64_t i = 0; i < n; ++i) gram[static_cast<size_t>(i * n + i)] += lambda;
  const lapack_int info = LAPACKE_dpotrf(LAPACK_COL_MAJOR, 'L', static_cast<lapack_int>(n),
                                         gram.data(), static_cast<lapack_int>(n));
  if (info != 0)
    fail(
        "λ = {:g} is lost in the rounding of the Gram matrix: use Gram scale trace or max, or a "
        "larger λ",
        lambda);
  return gram;
}

// An index with probability in proportion to its weight.
int64_t draw_index(std::span<const double> weights, Random& random) {
  double left = random.uniform() * std::accumulate(weights.begin(), weights.end(), 0.0);
  int64_t last = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] <= 0) continue;
    last = static_cast<int64_t>(i);
    if ((left -= weights[i]) < 0) break;
  }
  return last;
}

}  // namespace

RidgeKernel::RidgeKernel(const Tensor& samples, GramScale scale, double lambda)
    : samples_(kernel_samples(samples, scale)), lambda_(lambda) {
  require(lambda > 0 && std::isfinite(lambda), "λ: expected a positive number, found {}", lambda);
  const SingleThreaded one_thread;
  const int64_t J = samples_.count;
  const std::vector<double> gram = lower_triangle(gram_matrix(samples_));
  factor_ = ridge_factor(gram, J, lambda);
  positive_ = factor_;
  LAPACKE_dpotri(LAPACK_COL_MAJOR, 'L', static_cast<lapack_int>(J), positive_.data(),
                 static_cast<lapack_int>(J));
  row_mass_.assign(static_cast<size_t>(J), 0);
  dof_ = static_cast<double>(J);
  for (int64_t j = 0; j < J; ++j)
    for (int64_t i = j; i < J; ++i) {
      const auto at = static_cast<size_t>(j * J + i);
      if (i == j) dof_ -= lambda * positive_[at];
      positive_[at] = std::max(positive_[at], 0.0);
      positive_[static_cast<size_t>(i * J + j)] = positive_[at];
      const double mass = positive_[at] * gram[at];
      row_mass_[static_cast<size_t>(j)] += mass;
      if (i != j) row_mass_[static_cast<size_t>(i)] += mass;
    }
}

RidgeKernel::Whitened RidgeKernel::whitened(const Tensor& z) const {
  require_shape(z, {z.size(0), samples_.width}, "candidates");
  Whitened out;
  out.columns = shifted_features(samples_, z, out.log_scale);
  const auto J = static_cast<int>(samples_.count);
  cblas_dtrsm(CblasColMajor, CblasLeft, CblasLower, CblasNoTrans, CblasNonUnit, J,
              static_cast<int>(z.size(0)), 1.0, factor_.data(), J, out.columns.data(), J);
  for (double& scale : out.log_scale) scale += 0.5 * samples_.log_factor;
  return out;
}

std::vector<double> RidgeKernel::log_scores(const Tensor& z) const {
  const SingleThreaded one_thread;
  const Whitened features = whitened(z);
  const auto J = static_cast<int>(samples_.count);
  std::vector<double> scores;
  for (size_t m = 0; m < features.log_scale.size(); ++m) {
    const double* column = features.columns.data() + m * static_cast<size_t>(J);
    scores.push_back(2 * features.log_scale[m] + std::log(cblas_ddot(J, column, 1, column, 1)));
  }
  return scores;
}

// The density is Σ_ij P_ij Σ_ij N(z; x_i + x_j, I) over its sum N_λ, with P = (Σ+λI)⁻¹ and x in
// units of D^¼: this draws from its positive terms.
void RidgeKernel::propose(float* z, Random& random) const {
  const int64_t J = samples_.count, D = samples_.width;
  const int64_t i = draw_index(row_mass_, random);
  const double* x = samples_.rows.data() + i * D;
  std::vector<double> weights(static_cast<size_t>(J));
  cblas_dgemv(CblasColMajor, CblasTrans, static_cast<int>(D), static_cast<int>(J), 1.0,
              samples_.rows.data(), static_cast<int>(D), x, 1, 0.0, weights.data(), 1);
  exp_shifted(weights.data(), J, -samples_.log_factor);
  for (int64_t j = 0; j < J; ++j)
    weights[static_cast<size_t>(j)] *= positive_[static_cast<size_t>(i * J + j)];
  const double* y = samples_.rows.data() + draw_index(weights, random) * D;
  for (int64_t c = 0; c < D; ++c) z[c] = static_cast<float>(x[c] + y[c] + random.normal());
}

// log of c φᵀP⁺φ, the positive terms of the score.
std::vector<double> RidgeKernel::log_positive_scores(const Tensor& z) const {
  const auto J = static_cast<int>(samples_.count), M = static_cast<int>(z.size(0));
  std::vector<double> scores;
  const std::vector<double> phi = shifted_features(samples_, z, scores);
  std::vector<double> image(phi.size());
  cblas_dsymm(CblasColMajor, CblasLeft, CblasLower, J, M, 1.0, positive_.data(), J, phi.data(), J,
              0.0, image.data(), J);
  for (size_t m = 0; m < scores.size(); ++m) {
    const auto at = m * static_cast<size_t>(J);
    scores[m] = 2 * scores[m] + samples_.log_factor +
                std::log(cblas_ddot(J, phi.data() + at, 1, image.data() + at, 1));
  }
  return scores;
}

// A candidate from the positive terms is accepted with the probability score / positive score: what
// is accepted has the density exactly.
Tensor RidgeKernel::draw(int64_t count, Random& random) const {
  const SingleThreaded one_thread;
  const int64_t D = samples_.width;
  Tensor out({count, D}), batch({kBatch, D});
  int64_t accepted = 0, refused = 0;
  while (accepted < count) {
    for (int64_t b = 0; b < kBatch; ++b) propose(batch.data<float>() + b * D, random);
    const std::vector<double> scores = log_scores(batch), positive = log_positive_scores(batch);
    for (size_t b = 0; b < scores.size() && accepted < count; ++b) {
      if (std::log(1 - random.uniform()) > scores[b] - positive[b]) {
        if (++refused > kMostRefused)
          fail("λ = {:g} is too small to draw features by leverage: use a larger λ", lambda_);
        continue;
      }
      refused = 0;
      std::copy_n(batch.data<float>() + static_cast<int64_t>(b) * D, D,
                  out.data<float>() + accepted++ * D);
    }
  }
  return out;
}

// With L Lᵀ = Σ + λI, L = (Σ+λI)^½ times a rotation, and the norm is that of L⁻¹(Σ − Σ̂)L⁻ᵀ =
// I − λ L⁻¹L⁻ᵀ − B Bᵀ, B the whitened features.
std::vector<double> RidgeKernel::errors(const Tensor& z, std::span<const double> log_alpha,
                                        std::span<const int64_t> ladder) const {
  require(std::ssize(log_alpha) == z.size(0), "{} weights for {} features", log_alpha.size(),
          z.size(0));
  const SingleThreaded one_thread;
  const auto J = static_cast<int>(samples_.count);
  Whitened features = whitened(z);
  for (size_t m = 0; m < log_alpha.size(); ++m)
    cblas_dscal(J, std::exp(features.log_scale[m] + 0.5 * log_alpha[m]),
                features.columns.data() + m * static_cast<size_t>(J), 1);
  std::vector<double> out;
  for (const int64_t count : ladder) {
    require(count >= 1 && count <= z.size(0), "{} of {} features", count, z.size(0));
    const auto M = static_cast<int>(count);
    std::vector<double> along(static_cast<size_t>(M)), solved(static_cast<size_t>(J));
    const auto apply = [&](const double* v, double* image) {
      std::copy_n(v, J, solved.data());
      cblas_dtrsv(CblasColMajor, CblasLower, CblasTrans, CblasNonUnit, J, factor_.data(), J,
                  solved.data(), 1);
      cblas_dtrsv(CblasColMajor, CblasLower, CblasNoTrans, CblasNonUnit, J, factor_.data(), J,
                  solved.data(), 1);
      cblas_dgemv(CblasColMajor, CblasTrans, J, M, 1.0, features.columns.data(), J, v, 1, 0.0,
                  along.data(), 1);
      std::copy_n(v, J, image);
      cblas_daxpy(J, -lambda_, solved.data(), 1, image, 1);
      cblas_dgemv(CblasColMajor, CblasNoTrans, J, M, -1.0 / M, features.columns.data(), J,
                  along.data(), 1, 1.0, image, 1);
    };
    out.push_back(operator_norm(J, apply));
  }
  return out;
}

}  // namespace dofla
