#pragma once

#include "dofla/ops/linear_attention.h"

namespace dofla::cuda {

Tensor linear_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Features& features,
                        LinearAttentionState& state, int64_t chunk);

LinearAttentionGradients linear_attention_backward(const Tensor& q, const Tensor& k,
                                                   const Tensor& v, const Features& features,
                                                   const Tensor& grad_out);

}  // namespace dofla::cuda
