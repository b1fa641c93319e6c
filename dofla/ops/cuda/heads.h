// Head layout and rotary embedding on a GPU; arguments are checked by ops/heads.cc.
#pragma once

#include "dofla/ops/heads.h"

namespace dofla::cuda {

void copy_heads(const Tensor& from, Tensor& to);
void rotate(Tensor& x, const std::vector<float>& frequencies, int64_t first_position);

}  // namespace dofla::cuda
