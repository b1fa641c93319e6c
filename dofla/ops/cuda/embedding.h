// Table look-up on a GPU; arguments are checked by ops/embedding.cc.
#pragma once

#include "dofla/core/tensor.h"

namespace dofla::cuda {

void embed(const Tensor& table, const Tensor& ids, Tensor& out);
void embed_sequences(const Tensor& tokens, const Tensor& positions, const Tensor& ids,
                     int64_t first, Tensor& out);
void embed_backward(const Tensor& ids, const Tensor& grad, Tensor& grad_table);

}  // namespace dofla::cuda
