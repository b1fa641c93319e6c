// The objectives on one row of logits: the teacher's log K(q_i, ·) against the student's
// log K̂(q_i, ·). They know nothing of features.
#pragma once

#include <cstdint>

namespace dofla::cpu {

// Each returns the row's loss and replaces the student's logits by the loss's derivative with
// respect to them. The teacher's logits are overwritten.
double softmax_row(float* teacher, float* student, int64_t n);
double attention_mse_row(float* teacher, float* student, int64_t n);

// (K − K̂)² with both divided by exp(log_scale).
double l2_row(float* teacher, float* student, float log_scale, int64_t n);

// logits[j] = log(product[j]) + shift[j]. Returns how many products have vanished (are smaller than
// `smallest`) and writes their indices to `vanished`, which holds n.
int64_t row_logits(const float* product, const float* shift, float smallest, float* logits,
                   int64_t* vanished, int64_t n);

// product[j] = gradient[j] / product[j].
void divide_row(const float* gradient, float* product, int64_t n);

// A pair alone, from the log features themselves: log Σ_m exp(x_m + y_m).
float log_sum_exp_of_sum(const float* x, const float* y, int64_t n);

// Adds gradient · exp(x_m + y_m − log_sum) to grad_x and to grad_y.
void add_pair_gradient(const float* x, const float* y, float log_sum, float gradient, float* grad_x,
                       float* grad_y, int64_t n);

}  // namespace dofla::cpu
