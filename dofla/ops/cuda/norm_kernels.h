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
// Gradients: grad_x, and into `statistics` [rows, 2] each row's mean and scale for the following.
cudaError_t launch_norm_backward(const NormArguments& arguments, const void* grad_y, void* grad_x,
                                 float* statistics, cudaStream_t stream);
// grad_weight += Σ_rows grad_y · (x − mean) · scale, grad_bias += Σ_rows grad_y; either may be
// null.
cudaError_t launch_norm_weight_backward(const NormArguments& arguments, const void* grad_y,
                                        const float* statistics, float* grad_weight,
                                        float* grad_bias, cudaStream_t stream);

// sums[c] += Σ_rows x[r, c]: the gradient of a bias.
cudaError_t launch_add_column_sums(Element element, const void* x, int64_t rows, int64_t columns,
                                   float* sums, cudaStream_t stream);

}  // namespace dofla::cuda
