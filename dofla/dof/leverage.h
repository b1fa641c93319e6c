// Ridge leverage scores of features: how much of the kernel on the samples of a head one feature
// φ(x; z) = exp(z·x/D^¼ − |x|²/(2√D)) accounts for. The mean score over z ~ N(0, I) is N_λ, and
// score/N_λ is the optimal density of the theory, which can be drawn from: docs/theory.md, "The
// leverage density".
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dofla/core/random.h"
#include "dofla/core/tensor.h"
#include "dofla/dof/gram.h"

namespace dofla {

// Σ = c K on J samples of a head, factored as Σ + λI = L Lᵀ. Runs on one thread: use one a head.
class RidgeKernel {
 public:
  // Throws Error where kernel_samples does, and if λ is lost in the rounding of Σ.
  RidgeKernel(const Tensor& samples,  // [J, D], F32 or F64
              GramScale scale, double lambda);

  double dof() const { return dof_; }  // N_λ

  // log of c · φᵀ(Σ+λI)⁻¹φ for every candidate, φ the feature at the J samples. With
  // GramScale::kSamples, c is 1/J, and the score is the inner product ⟨φ(·;z), (Σ+λI)⁻¹φ(·;z)⟩ in
  // L²(ρ) on the empirical measure ρ, as in the paper.
  std::vector<double> log_scores(const Tensor& z) const;  // [M, D], F32 or F64

  // Directions from the density score/N_λ relative to N(0, I), independent of each other, [M, D].
  // Features there have α = N_λ/score. Throws Error if hardly any candidate is accepted.
  Tensor draw(int64_t count, Random& random) const;

  // ‖(Σ+λI)^(−½) (Σ − Σ̂) (Σ+λI)^(−½)‖, the error that the theorem bounds, with Σ̂ made of the first
  // M features z with weights α, for every M of the ladder.
  std::vector<double> errors(const Tensor& z, std::span<const double> log_alpha,  // [M, D], [M]
                             std::span<const int64_t> ladder) const;

 private:
  // √c L⁻¹φ for every z as exp(log_scale) times a column, [J, M] column-major.
  struct Whitened {
    std::vector<double> columns;
    std::vector<double> log_scale;
  };
  Whitened whitened(const Tensor& z) const;
  void propose(float* z, Random& random) const;
  std::vector<double> log_positive_scores(const Tensor& z) const;

  KernelSamples samples_;
  double lambda_;
  std::vector<double> factor_;    // L, column-major, [J, J]
  std::vector<double> positive_;  // the positive entries of (Σ+λI)⁻¹, else 0, [J, J]
  std::vector<double> row_mass_;  // of them times Σ, summed over the columns
  double dof_ = 0;
};

}  // namespace dofla
