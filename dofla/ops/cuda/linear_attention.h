// Linear attention on a GPU; arguments are checked by ops/linear_attention.cc.
#pragma once

#include "dofla/ops/linear_attention.h"

namespace dofla::cuda {

// `state` may be null; fills in `log_sum` unless it is null.
Tensor linear_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Features& features,
                        LinearAttentionState* state, Tensor* log_sum);

LinearAttentionGradients linear_attention_backward(const Tensor& q, const Tensor& k,
                                                   const Tensor& v, const Features& features,
                                                   const Tensor& grad_out,
                                                   const AttentionTape& tape, GradientRoom room);

}  // namespace dofla::cuda
