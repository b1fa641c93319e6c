// The softmax attention's backward in bf16 by warpgroups, for rows in packs of 16 bytes.
#pragma once

#include "dofla/ops/cuda/softmax_attention_kernels.h"

namespace dofla::cuda {

struct SoftmaxBackwardRows {
  HeadRows q, k, v, out, grad_out;
};

int64_t warpgroup_backward_workspace_bytes(const SoftmaxAttentionShape& shape);

cudaError_t launch_warpgroup_backward(const SoftmaxAttentionShape& shape,
                                      const SoftmaxBackwardRows& rows, const float* log_sum,
                                      const SoftmaxAttentionGradientsOut& gradients,
                                      void* workspace, cudaStream_t stream);

}  // namespace dofla::cuda
