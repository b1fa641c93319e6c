// Softmax attention on a GPU; arguments are checked by ops/softmax_attention.cc.
#pragma once

#include "dofla/ops/softmax_attention.h"

namespace dofla::cuda {

// Fills in `log_sum` unless it is null.
void softmax_attention(const Tensor& q, const Tensor& k, const Tensor& v, int64_t keys, Tensor& out,
                       Tensor* log_sum);

SoftmaxAttentionGradients softmax_attention_backward(const Tensor& q, const Tensor& k,
                                                     const Tensor& v, const Tensor& grad_out,
                                                     const AttentionTape& tape, GradientRoom room);

}  // namespace dofla::cuda
