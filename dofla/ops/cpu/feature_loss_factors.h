// Queries and keys as bounded factors: K̂_ij = exp(peak_i + peak_j) Σ_m factor_im factor_jm / e^60,
// after features have been balanced between queries and keys. docs/kernels.md, "Lifting" and
// "Balancing".
#pragma once

#include <vector>

#include "dofla/ops/cpu/positive_features.h"

namespace dofla::cpu {

// Natural logarithms; a product below kSmallestProduct has vanished.
constexpr float kLift = 30.0f;
constexpr float kSmallestProduct = 1.3888e-11f, kLogSmallestProduct = -25.0f;

// The queries or the keys of one head and sequence.
struct Side {
  std::vector<float> peak;    // [T]
  std::vector<float> logs;    // [T, M]: log φ̃, balanced, − peak
  std::vector<float> factor;  // [T, M]: exp(logs + kLift)
};

void fill_sides(const HeadFeatures& features, const float* q, const float* k,  // [T, D]
                int64_t tokens, Side& query, Side& key);

}  // namespace dofla::cpu
