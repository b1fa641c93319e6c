#pragma once

#include "dofla/ops/divergence.h"

namespace dofla::cuda {

Divergence divergence(const Tensor& teacher, const Tensor& student, const Tensor& targets);
OutputError output_error(const Tensor& teacher, const Tensor& student);

}  // namespace dofla::cuda
