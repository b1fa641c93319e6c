// Ridge leverage scores of candidate features: how much of the kernel on the samples of a head one
// feature φ(x; z) = exp(z·x/D^¼ − |x|²/(2√D)) accounts for. Drawing z in proportion to its score is
// the optimal density of the theory; the mean score over z ~ N(0, I) is N_λ.
#pragma once

#include <vector>

#include "dofla/core/tensor.h"
#include "dofla/dof/gram.h"

namespace dofla {

// log of c · φᵀ(Σ+λI)⁻¹φ for every candidate, where Σ = c K is the Gram matrix with this scale and
// φ the feature at the J samples. With GramScale::kSamples, c is 1/J, and the score is the inner
// product ⟨φ(·;z), (Σ+λI)⁻¹φ(·;z)⟩ in L²(ρ) on the empirical measure ρ, as in the paper.
std::vector<double> log_leverage_scores(const Tensor& samples,     // [J, D], F32 or F64
                                        const Tensor& candidates,  // z, [M, D], F32 or F64
                                        GramScale scale, double lambda);

}  // namespace dofla
