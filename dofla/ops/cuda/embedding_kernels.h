// Rows of a table by id.
#pragma once

#include "dofla/ops/cuda/element.h"

namespace dofla::cuda {

// out[i] = table[ids[i]]; every id lies in the table.
cudaError_t launch_embed(Element element, const void* table, int64_t width, const int64_t* ids,
                         int64_t count, void* out, cudaStream_t stream);

// grad_table[ids[i]] += grad[i], in the order of i; the table's gradient is float32.
cudaError_t launch_embed_backward(Element element, const void* grad, int64_t width,
                                  const int64_t* ids, int64_t count, float* grad_table,
                                  cudaStream_t stream);

}  // namespace dofla::cuda
