// Queries and keys as bounded factors: K̂_ij = exp(peak_i + peak_j) Σ_m factor_im factor_jm / e^60.
//
// A row's peak is its own largest log φ̃. Before that, log φ̃_m is raised for queries by as much as
// it is lowered for keys, until every feature is the peak of some query: products stay as they are,
// and fewer of them consist of terms that are far from the peaks on both sides.
#pragma once

#include <vector>

#include "dofla/ops/cpu/positive_features.h"

namespace dofla::cpu {

// Factors reach up to e^30 and vanish below e^-87. A product of at least e^-25 has lost nothing:
// a term with a vanished factor is below e^-57.
constexpr float kLift = 30.0f;
constexpr float kSmallestProduct = 1.3888e-11f, kLogSmallestProduct = -25.0f;

// The queries or the keys of one head and sequence.
struct Side {
  std::vector<float> peak;    // [T]
  std::vector<float> logs;    // [T, M]: log φ̃, raised or lowered, − peak
  std::vector<float> factor;  // [T, M]: exp(logs + kLift)
};

void fill_sides(const HeadFeatures& features, const float* q, const float* k,  // [T, D]
                int64_t tokens, Side& query, Side& key);

}  // namespace dofla::cpu
