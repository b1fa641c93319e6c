#pragma once

#include "dofla/ops/divergence.h"

namespace dofla::cuda {

Divergence divergence(const Tensor& teacher, const Tensor& student, const Tensor& targets);

}  // namespace dofla::cuda
