// The layerwise objectives and their gradients by definition, in double precision.
#pragma once

#include "dofla/ops/feature_loss.h"
#include "tests/reference/log_feature_gradients.h"

namespace dofla::reference {

// The sensitivities are to K and K̂ (l2), or to p and p̂ (the other two).
struct FeatureLossReference {
  Sensitive per_head;        // [H]
  Sensitive grad_z;          // [ΣM, D]
  Sensitive grad_log_alpha;  // [ΣM]

  double total() const;
};

// For kSequence scaling the largest K alone sets the scale.
FeatureLossReference feature_loss(const AttentionCase& problem, const FeatureLossOptions& options);

}  // namespace dofla::reference
