// From float32 to the type that a GPU computes with.
#pragma once

#include "dofla/core/tensor.h"

namespace dofla {

// to = from, rounded to the type of `to`.
void round_into(const Tensor& from,  // F32
                Tensor& to);         // of the same shape and device, F32 or BF16

}  // namespace dofla
