// Dense layers on a GPU; arguments are checked by ops/matmul.cc.
#pragma once

#include "dofla/ops/matmul.h"

namespace dofla::cuda {

void matmul(const Tensor& x, const Linear& linear, Tensor& y);
void cross_entropy(const Tensor& x, const Linear& head, const Tensor& targets, Tensor& loss);

}  // namespace dofla::cuda
