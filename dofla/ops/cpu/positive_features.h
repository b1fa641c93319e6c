#pragma once

#include <vector>

#include "dofla/ops/features.h"

namespace dofla::cpu {

// The features of one head, with the constants of log φ̃ worked out.
struct HeadFeatures {
  const float* z;             // [M, D]
  int64_t count;              // M
  int64_t width;              // D
  std::vector<float> offset;  // [M]: ½ (log α_m − log M)
  float inner_scale;          // d^-¼
  float norm_scale;           // 1/(2√d), or 0 for features without the norm term
};

std::vector<HeadFeatures> head_features(const Features& features);

// out[t, m] = z_m·x_t / d^¼ + offset_m: log φ̃ less the row's |x|²/(2√d), which cancels wherever a
// row is normalised, and which would cost digits when |x| is large.
void log_features_without_norm(const HeadFeatures& features,
                               const float* x,  // [rows, D]
                               int64_t rows,
                               float* out);  // [rows, M]

// out[t] = |x_t|² / (2√d), or 0 for features without the norm term.
void half_norms(const HeadFeatures& features,
                const float* x,  // [rows, D]
                int64_t rows, float* out);

// log φ̃ whole.
void log_features(const HeadFeatures& features, const float* x, int64_t rows, float* out);

// Hands the gradients of log φ̃ on to z and log α, which they are added to.
void add_feature_gradients(const HeadFeatures& features,
                           const float* x,         // [rows, D]
                           const float* gradient,  // [rows, M]
                           int64_t rows,
                           float* grad_z,           // [M, D]
                           float* grad_log_alpha);  // [M]

// factor · the sum over the first axis, in order: the result never depends on the threads that
// computed the parts.
Tensor sum_over_batch(const Tensor& parts, float factor);

Tensor log_positive_features(const Tensor& x, const Features& features);

}  // namespace dofla::cpu
