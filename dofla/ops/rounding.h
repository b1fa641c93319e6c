// From float32 to the type that a GPU computes with.
#pragma once

#include "dofla/core/tensor.h"

namespace dofla {

// to = from, rounded to the type of `to`.
void round_into(const Tensor& from,  // F32
                Tensor& to);         // of the same shape and device, F32 or BF16

// What a GPU has to implement; ops/rounding.cc checks the arguments.
struct RoundingBackend {
  decltype(&dofla::round_into) round_into;
};
namespace cuda {
extern const RoundingBackend kRounding;
}

}  // namespace dofla
