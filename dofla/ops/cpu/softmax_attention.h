// Softmax attention on the CPU; arguments are checked by ops/softmax_attention.cc.
#pragma once

#include "dofla/core/tensor.h"

namespace dofla::cpu {

void softmax_attention(const Tensor& q, const Tensor& k, const Tensor& v, int64_t keys,
                       Tensor& out);

}  // namespace dofla::cpu
