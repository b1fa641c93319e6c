// Positive random features of queries or keys, in the log domain:
//   log φ̃_m(x) = z_m·x / d^¼ − |x|² / (2√d) + ½ (log α_m − log M)
// so that K̂(x, y) = Σ_m φ̃_m(x) φ̃_m(y) estimates exp(x·y/√d). Features without subtract_norm leave
// out the term in |x|²; untied ones have u_m in the place of z_m for queries, and for keys η times
// the term in |x|².
#pragma once

#include "dofla/ops/features.h"

namespace dofla {

enum class FeatureSide { kQueries, kKeys };

// Returns [B, T, ΣM]: the features of all query heads side by side, head after head.
Tensor log_positive_features(const Tensor& x,  // [B, X, T, D], X = H or, for shared keys, Hkv
                             const Features& features, FeatureSide side);

}  // namespace dofla
