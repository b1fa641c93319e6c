// Dense layers on the CPU; arguments are checked by ops/matmul.cc.
#pragma once

#include "dofla/ops/matmul.h"

namespace dofla::cpu {

void matmul(const Tensor& x, const Linear& linear, Tensor& y);
void cross_entropy(const Tensor& x, const Linear& head, const Tensor& targets, Tensor& loss);

}  // namespace dofla::cpu
