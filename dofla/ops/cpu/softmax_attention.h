// Softmax attention on the CPU; arguments are checked by ops/softmax_attention.cc.
#pragma once

#include "dofla/ops/softmax_attention.h"

namespace dofla::cpu {

void softmax_attention(const Tensor& q, const Tensor& k, const Tensor& v, int64_t keys,
                       Tensor& out);

SoftmaxAttentionGradients softmax_attention_backward(const Tensor& q, const Tensor& k,
                                                     const Tensor& v, const Tensor& grad_out);

}  // namespace dofla::cpu
