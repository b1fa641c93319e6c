// The rows of a panel of logits: loss, and in the backward the gradient in their place.
#pragma once

#include "dofla/ops/cuda/element.h"

namespace dofla::cuda {

// A panel of logits: rows are `stride` elements apart, a multiple that suits matrix products.
struct LogitPanel {
  Element element;
  int64_t rows, vocabulary, stride;
};

// loss[r] = log Σ exp(logits[r]) − logits[r, targets[r]]
cudaError_t launch_cross_entropy_rows(const LogitPanel& panel, const void* logits,
                                      const int64_t* targets, float* loss, cudaStream_t stream);

// The same, then logits[r] = grad_loss[r] · (softmax(logits[r]) − one-hot(targets[r])).
cudaError_t launch_cross_entropy_rows_backward(const LogitPanel& panel, void* logits,
                                               const int64_t* targets, const float* grad_loss,
                                               float* loss, cudaStream_t stream);

// loss[r] = KL(softmax(teacher[r]) ‖ softmax(logits[r])), then
// logits[r] = grad_loss[r] · (softmax(logits[r]) − softmax(teacher[r])).
cudaError_t launch_imitation_rows_backward(const LogitPanel& panel, const void* teacher,
                                           void* logits, const float* grad_loss, float* loss,
                                           cudaStream_t stream);

// y[r, n] = logits[r, n] + bias[n], without the padding between rows.
cudaError_t launch_copy_panel(const LogitPanel& panel, const void* logits,
                              const void* bias,  // [vocabulary], or null
                              Element bias_element,
                              void* y,  // [rows, vocabulary], in the panel's element
                              cudaStream_t stream);

// What two models say of the next token, as in ops/divergence.h: kTokenNumbers doubles a row, the
// fields of TokenStatistics in their order, without the target.
constexpr int64_t kTokenNumbers = 10;
cudaError_t launch_token_statistics(const float* teacher, const float* student, int64_t rows,
                                    int64_t vocabulary, const int64_t* targets, double* out,
                                    cudaStream_t stream);

// Parts of the sums of every head's OutputError, always the same for the same tensors.
constexpr int64_t kOutputSums = 128;
cudaError_t launch_head_errors(Element element, int64_t rows, int64_t heads, int64_t head_size,
                               const void* teacher,  // [rows, heads, head_size]
                               const void* student,  // [rows, heads, head_size]
                               double* sums,         // [heads, kOutputSums, 2]
                               cudaStream_t stream);

}  // namespace dofla::cuda
