// Products of a few rows with scaled weights.
#pragma once

#include "dofla/ops/matmul.h"

namespace dofla::cpu {

// y += W x for up to kManyRows rows. x is rounded to 16 bits, a row by a step of its own, which is
// the only error beyond that of floats: half a step times the sum of a row's |w|.
void add_scaled_product(const Tensor& x, const Linear& linear, Tensor& y);

}  // namespace dofla::cpu
