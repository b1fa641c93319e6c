// Head layout and rotary embedding on the CPU; arguments are checked by ops/heads.cc.
#pragma once

#include "dofla/ops/heads.h"

namespace dofla::cpu {

void copy_heads(const Tensor& from, Tensor& to);
void rotate(Tensor& x, const std::vector<float>& frequencies, int64_t first_position);

// [B, H, T, D] to [B, Hkv, T, D]: the query heads that share a key head add up, in order.
Tensor sum_over_groups(const Tensor& parts, int64_t key_heads);

}  // namespace dofla::cpu
