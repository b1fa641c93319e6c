// From gradients of log φ̃ to gradients of features, with the error that each may carry.
#pragma once

#include <functional>
#include <string>

#include "dofla/ops/positive_features.h"
#include "tests/reference/attention_case.h"

namespace dofla::reference {

// Values, and how far each moves when every kernel value that it comes from moves by one part of
// itself: all of a row together, different rows at random.
struct Sensitive {
  explicit Sensitive(size_t count) : value(count, 0.0), sensitivity(count, 0.0) {}

  std::vector<double> value;
  std::vector<double> sensitivity;
};

// The log features of the queries or keys of one query head and sequence.
struct LogFeatures {
  LogFeatures(const AttentionCase& problem, FeatureSide side, int64_t sequence, int64_t head);

  // Adds a pair's gradient, of which this feature had the given share.
  void add(int64_t token, int64_t feature, double share, double gradient, double sensitivity);

  FeatureSide side;
  int64_t head;
  const double* x;                            // [T, D]
  const double* directions;                   // [M, D]
  double norm_weight;                         // of the term in |x|²
  std::vector<double> logs;                   // [T, M]
  std::vector<double> gradient, sensitivity;  // [T, M]
  int64_t count;                              // M
};

// The gradients of features. Sensitivities are added as squares: take the root at the end.
struct SensitiveFeatures {
  explicit SensitiveFeatures(const AttentionCase& problem);

  // Hands the gradients of log φ̃ on.
  void add(const AttentionCase& problem, const LogFeatures& from);

  Sensitive z, log_alpha, u, norm_weight;  // the last two empty where features are tied
};

// Every part within `tolerance` of (sensitivity, largest sensitivity of the part).
void expect_feature_gradients(
    const FeatureGradients& actual, const SensitiveFeatures& expected,
    const std::function<double(double sensitivity, double largest)>& tolerance,
    const std::string& what);

}  // namespace dofla::reference
