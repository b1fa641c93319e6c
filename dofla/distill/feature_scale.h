// How large K̂ is beside K. Linear attention alone does not see the scale of its features: it
// cancels. Beside exact keys it does not, and features that were drawn at pairs know their weights
// only up to a factor (pair_init.h).
#pragma once

#include <vector>

#include "dofla/distill/pairs_to_learn.h"

namespace dofla {

// Some queries of one sequence with all the keys that features estimate for them, on the CPU.
struct SampledRows {
  Tensor q;                   // [H, n, D]
  Tensor rest;                // [H, n]
  Tensor k;                   // [Hkv, T, D]
  std::vector<int64_t> seen;  // [n], ascending: how many of the keys a query sees
};

// At most so many queries, evenly spread. The pairs must be of one sequence and have a rest.
SampledRows sample_rows(const PairsToLearn& pairs, int64_t most);

// What log α of features of the query heads [first, first + heads), all of one key head, lacks:
// shifted by it, the features get as much of the attention of all these queries together as the
// teacher gives to the keys that are left to them. It is the shift with the smallest softmax loss.
// Queries and keys have the same directions, as features have when they are drawn.
double missing_log_scale(const SampledRows& rows, int64_t first, int64_t heads,
                         const float* z,          // [M, D]
                         const float* log_alpha,  // [M]
                         int64_t count);          // M

}  // namespace dofla
