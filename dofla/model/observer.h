// Lets a stage look at the queries, keys and values of every layer as they enter the attention
// kernel: after biases, q/k norms and rotary embedding. On a GPU they may be views of a
// projection's rows, to be had as tensors of their own from contiguous_heads (ops/heads.h).
#pragma once

#include <cstdint>
#include <functional>

#include "dofla/core/tensor.h"

namespace dofla {

using Observer = std::function<void(int64_t layer,
                                    const Tensor& q,    // [B, H, T, D]
                                    const Tensor& k,    // [B, Hkv, T, D]
                                    const Tensor& v)>;  // [B, Hkv, T, D]

}  // namespace dofla
