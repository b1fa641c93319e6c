// The layerwise objectives and their gradients by definition, in double precision.
#pragma once

#include <string>

#include "dofla/ops/feature_loss.h"
#include "tests/reference/log_feature_gradients.h"

namespace dofla::reference {

inline constexpr FeatureLossKind kFeatureLossKinds[] = {
    FeatureLossKind::kSoftmax, FeatureLossKind::kL2, FeatureLossKind::kAttentionMse};

// The sensitivities are to K and K̂ (l2), or to p and p̂ (the other two).
struct FeatureLossReference {
  Sensitive per_head;  // [H]
  SensitiveFeatures grad;

  double total() const;
};

FeatureLossReference feature_loss(const AttentionCase& problem, const FeatureLossOptions& options,
                                  const std::vector<double>& rest = {});  // [B, H, T], or none

// A rest for every row, [B, H, T]: near the sum of its K, near that of its K̂, none, padding and any
// number, in turn.
std::vector<double> every_rest(const AttentionCase& problem);

// The relative error of one K, K̂, p or p̂ in float32: that of its exponent, and of sums over
// features and keys.
double pair_error(const AttentionCase& problem);

// Every number within `relative` of what it is sensitive to. Of gradients, pairs of e^-25 of their
// row may have been left out.
void expect_loss(const FeatureLoss& actual, const FeatureLossReference& expected, double relative,
                 const std::string& what);
void expect_gradients(const FeatureLoss& actual, const FeatureLossReference& expected,
                      double relative, const std::string& what);

}  // namespace dofla::reference
