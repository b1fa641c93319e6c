// The layerwise objectives and their gradients by definition, in double precision.
#pragma once

#include "dofla/ops/feature_loss.h"
#include "tests/reference/attention_case.h"

namespace dofla::reference {

// A value and how far it moves when every K and K̂ (l2), or every p and p̂ (the other two), moves by
// one part of itself: all of a row together, different rows at random.
struct Sensitive {
  std::vector<double> value;
  std::vector<double> sensitivity;
};

struct FeatureLossReference {
  Sensitive per_head;        // [H]
  Sensitive grad_z;          // [ΣM, D]
  Sensitive grad_log_alpha;  // [ΣM]

  double total() const;
};

// For kSequence scaling the largest K alone sets the scale.
FeatureLossReference feature_loss(const AttentionCase& problem, const FeatureLossOptions& options);

}  // namespace dofla::reference
