// From the gradients of log φ̃ to those of the features.
#pragma once

#include "dofla/ops/cpu/positive_features.h"

namespace dofla::cpu {

// What heads and sequences hand on, kept apart and added up in order at the end: the result never
// depends on the threads that computed the parts.
class FeatureGradientParts {
 public:
  FeatureGradientParts(const Features& features, int64_t batch);

  // Of one query head in one sequence. Different ones may be taken at the same time.
  void take(int64_t sequence, int64_t head, const HeadFeatures& own,
            const float* q,       // [T, D]
            const float* grad_q,  // [T, M]: of log φ̃(q)
            const float* k,       // [T, D]
            const float* grad_k,  // [T, M]: of log φ̃(k)
            int64_t tokens);

  FeatureGradients sum(float factor) const;  // of all, times the factor

 private:
  Features features_;
  std::vector<int64_t> offsets_;  // query_offsets()
  // [B, rows, D], [B, rows] and [B, H]; directions of keys are those of queries where tied.
  Tensor query_directions_, key_directions_, log_alpha_, norm_weight_;
};

}  // namespace dofla::cpu
