// Tensors of heads as attention kernels take them.
#pragma once

#include "dofla/ops/cuda/head_rows.h"
#include "dofla/ops/cuda/tensors.h"

namespace dofla::cuda {

// [B, H, T, D], or a view of such
inline HeadRows heads_of(const Tensor& x) {
  require(x.step(3) == 1, "heads: the vectors have gaps");
  return {x.first(), x.step(0), x.step(1), x.step(2)};
}
inline HeadRowsOut heads_of(Tensor& x) {
  require(x.step(3) == 1, "heads: the vectors have gaps");
  return {x.mutable_first(), x.step(0), x.step(1), x.step(2)};
}

// [B, T, H, D]
inline HeadRows token_heads_of(const Tensor& x) {
  return tokens_then_heads(x.raw(), x.size(2), x.size(1), x.size(3));
}
inline HeadRowsOut token_heads_of(Tensor& x) {
  return tokens_then_heads(x.mutable_raw(), x.size(2), x.size(1), x.size(3));
}

}  // namespace dofla::cuda
