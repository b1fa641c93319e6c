// Normalisation of rows, one warp a row, and its gradients.
#pragma once

#include "dofla/ops/cuda/element.h"

namespace dofla::cuda {

// A layer norm, or with centre = false an RMS norm. weight and bias are float32; bias may be null.
struct NormArguments {
  Element element;
  int64_t rows, width;
  float epsilon;
  bool centre;
  const void* x;        // [rows, width]
  const float* weight;  // [width]
};

cudaError_t launch_norm(const NormArguments& arguments, const float* bias, void* y,
                        cudaStream_t stream);

struct NormGradient {
  const void* grad_y;  // [rows, width]
  const void* addend;  // of grad_x, shaped like it; may be null
  void* grad_x;
  // Sums over the rows of each block: grad_y · (x − mean) · scale, and with_bias grad_y. Null where
  // no one wants them.
  float* sums;  // [norm_backward_blocks, 1 or 2, width]
  bool with_bias;
};
int64_t norm_backward_blocks(const NormArguments& arguments);
cudaError_t launch_norm_backward(const NormArguments& arguments, const NormGradient& gradient,
                                 cudaStream_t stream);

}  // namespace dofla::cuda
