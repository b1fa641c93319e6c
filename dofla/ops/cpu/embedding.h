// Table look-up on the CPU; arguments are checked by ops/embedding.cc.
#pragma once

#include "dofla/core/tensor.h"

namespace dofla::cpu {

void embed(const Tensor& table, const Tensor& ids, Tensor& out);
void embed_backward(const Tensor& ids, const Tensor& grad, Tensor& grad_table);

}  // namespace dofla::cpu
