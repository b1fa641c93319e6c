// Head layout and rotary embedding on a GPU; arguments are checked by ops/heads.cc.
#pragma once

#include "dofla/ops/heads.h"

namespace dofla::cuda {

void gather_heads(const Tensor& rows, HeadColumns columns, Tensor& out);
void scatter_heads(const Tensor& heads, HeadColumns columns, Tensor& rows);
void rotate(Tensor& x, const std::vector<float>& frequencies, int64_t first_position);

}  // namespace dofla::cuda
