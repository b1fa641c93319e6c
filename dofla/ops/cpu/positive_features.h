#pragma once

#include <vector>

#include "dofla/ops/positive_features.h"

namespace dofla::cpu {

// The features of one head for its queries or its keys, with the constants of log φ̃ worked out.
struct SideFeatures {
  const float* directions;    // [M, D]: z, or u of untied features' queries
  int64_t count;              // M
  int64_t width;              // D
  std::vector<float> offset;  // [M]: ½ (log α_m − log M)
  float inner_scale;          // d^-¼
  float norm_scale;           // 1/(2√d), η times that for untied keys, 0 without the norm term
};

// The features of one query head. Where features are tied, both sides are the same.
struct HeadFeatures {
  SideFeatures query, key;
};

std::vector<HeadFeatures> head_features(const Features& features);  // one a query head

// out[t, m] = direction_m·x_t / d^¼ + offset_m: log φ̃ less the row's term in |x|², which cancels
// for queries wherever a row is normalised, and which would cost digits when |x| is large.
void log_features_without_norm(const SideFeatures& features,
                               const float* x,  // [rows, D]
                               int64_t rows,
                               float* out);  // [rows, M]

// out[t] = norm_scale |x_t|².
void half_norms(const SideFeatures& features,
                const float* x,  // [rows, D]
                int64_t rows, float* out);

// log φ̃ whole.
void log_features(const SideFeatures& features, const float* x, int64_t rows, float* out);

Tensor log_positive_features(const Tensor& x, const Features& features, FeatureSide side);

}  // namespace dofla::cpu
