// Degrees of freedom and leverage scores in plain loops, in extended precision and in the log
// domain: nothing here is clever.
#pragma once

#include <vector>

#include "dofla/core/tensor.h"
#include "dofla/dof/gram.h"

namespace dofla::reference {

using Matrix = std::vector<std::vector<long double>>;

// log of what K is divided by.
long double log_divisor(const Tensor& samples, GramScale scale);  // samples [J, D], F32 or F64
Matrix gram(const Tensor& samples, GramScale scale);

// J − λ tr(Σ+λI)⁻¹.
long double degrees_of_freedom(const Matrix& gram, long double lambda);

// log of c φᵀ(Σ+λI)⁻¹φ for every candidate.
std::vector<long double> log_leverage_scores(const Tensor& samples,
                                             const Tensor& candidates,  // [M, D]
                                             GramScale scale, long double lambda);

}  // namespace dofla::reference
