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
cudaError_t launch_norm_backward(const NormArguments& arguments, const void* grad_y, void* grad_x,
                                 cudaStream_t stream);

}  // namespace dofla::cuda
