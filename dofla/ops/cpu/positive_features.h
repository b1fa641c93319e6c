#pragma once

#include <vector>

#include "dofla/ops/features.h"

namespace dofla::cpu {

// The features of one head, ready for use: z scaled by nothing, the constants of log φ̃ gathered.
struct HeadFeatures {
  const float* z;             // [M, D]
  int64_t count;              // M
  int64_t width;              // D
  std::vector<float> offset;  // [M]: ½ (log α_m − log M)
  float inner_scale;          // d^-¼
};

std::vector<HeadFeatures> head_features(const Features& features);

// out[t, m] = z_m·x_t / d^¼ + offset_m: log φ̃ less the row's |x|²/(2√d), which cancels wherever a
// row is normalised, and which would cost digits when |x| is large.
void log_features_without_norm(const HeadFeatures& features,
                               const float* x,  // [rows, D]
                               int64_t rows,
                               float* out);  // [rows, M]

// out[t] = |x_t|² / (2√d).
void half_norms(const float* x,  // [rows, D]
                int64_t rows, int64_t width, float* out);

// log φ̃ whole.
void log_features(const HeadFeatures& features, const float* x, int64_t rows, float* out);

Tensor log_positive_features(const Tensor& x, const Features& features);

}  // namespace dofla::cpu
