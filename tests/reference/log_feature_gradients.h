// From gradients of log φ̃ to gradients of z and log α, with the error that each may carry.
#pragma once

#include "tests/reference/attention_case.h"

namespace dofla::reference {

// Values, and how far each moves when every kernel value that it comes from moves by one part of
// itself: all of a row together, different rows at random.
struct Sensitive {
  explicit Sensitive(size_t count) : value(count, 0.0), sensitivity(count, 0.0) {}

  std::vector<double> value;
  std::vector<double> sensitivity;
};

// The log features of the queries or keys of one head and sequence.
struct LogFeatures {
  LogFeatures(const AttentionCase& problem, const std::vector<double>& x, int64_t x_heads,
              int64_t sequence, int64_t head);

  // Adds a pair's gradient, of which this feature had the given share.
  void add(int64_t token, int64_t feature, double share, double gradient, double sensitivity);

  const double* x;                            // [T, D]
  std::vector<double> logs;                   // [T, M]
  std::vector<double> gradient, sensitivity;  // [T, M]
  int64_t count;                              // M
  int64_t offset;                             // of the head's first feature
};

// Hands the gradients on. Sensitivities are added as squares: take the root at the end.
void add_feature_gradients(const AttentionCase& problem, const LogFeatures& from, Sensitive& grad_z,
                           Sensitive& grad_log_alpha);

}  // namespace dofla::reference
