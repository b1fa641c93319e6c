// Descriptions of tensors from which the GPU's copy engine fetches boxes by itself (sm_90 and
// later): it computes the addresses, and what lies outside of the tensor becomes 0.
#pragma once

#include <cuda.h>

#include "dofla/ops/cuda/head_rows.h"

namespace dofla::cuda {

// bf16 heads [B, H, T, D] as boxes of `box_rows` tokens and 64 columns, laid out in shared memory
// as swizzled tiles are. The rows have to be in packs of 16 bytes.
cudaError_t describe_heads(const HeadRows& rows, int64_t batch, int64_t heads, int64_t tokens,
                           int64_t width, int box_rows, CUtensorMap& map);

}  // namespace dofla::cuda
