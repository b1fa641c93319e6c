// Rounding on a GPU; arguments are checked by ops/rounding.cc.
#pragma once

#include "dofla/core/tensor.h"

namespace dofla::cuda {

void round_into(const Tensor& from, Tensor& to);

}  // namespace dofla::cuda
