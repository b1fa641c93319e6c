// Linear attention by its definition: every pair's kernel as a log-sum-exp in double precision.
#pragma once

#include "tests/reference/attention_case.h"
#include "tests/reference/log_feature_gradients.h"

namespace dofla::reference {

// log φ̃ of the queries or keys of one query head, [T, M].
std::vector<double> log_features(const AttentionCase& problem, FeatureSide side, int64_t sequence,
                                 int64_t head);

// log K̂(q_i, k_j) of one head, [T, T].
std::vector<double> log_kernel_hat(const AttentionCase& problem, int64_t sequence, int64_t head);

// q_i·k_j / √d of one head, [T, T].
std::vector<double> log_kernel(const AttentionCase& problem, int64_t sequence, int64_t head);

std::vector<double> linear_attention(const AttentionCase& problem);  // [B, T, H, D]

// How far a float32 output may be off. A weight's relative error is that of two log features, once
// in the numerator and once in the denominator; the sums over features and tokens round as well.
double weight_error(const AttentionCase& problem);
double output_tolerance(const AttentionCase& problem);

std::vector<double> heads_inside(const std::vector<double>& x,  // [B, H, T, D] to [B, T, H, D]
                                 const AttentionCase& problem);

struct LinearAttentionReference {
  // Gradients, with their sensitivity to the weights.
  Sensitive q, k, v;
  SensitiveFeatures features;
};

LinearAttentionReference linear_attention_backward(
    const AttentionCase& problem,
    const std::vector<double>& grad_out);  // [B, T, H, D]

double log_sum_exp(const double* x, int64_t count);

}  // namespace dofla::reference
