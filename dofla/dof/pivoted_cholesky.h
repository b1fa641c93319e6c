// A low-rank factor of a positive semi-definite matrix, Σ ≈ F Fᵀ, that looks only at the columns it
// needs. What is left over, Σ − F Fᵀ, is positive semi-definite with a known trace.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "dofla/dof/gram.h"

namespace dofla {

struct LowRankFactor {
  int64_t rank = 0;
  std::vector<double> columns;  // F, column-major, [size, rank]
  double residual = 0;          // trace of Σ − F Fᵀ
};

// Greedy: the next pivots are the rows with the largest diagonal in what is left over. Nothing
// when the wanted residual takes more than `largest_rank` columns, or seems to.
std::optional<LowRankFactor> pivoted_cholesky(const PsdMatrix& matrix, double residual_wanted,
                                              int64_t largest_rank);

}  // namespace dofla
