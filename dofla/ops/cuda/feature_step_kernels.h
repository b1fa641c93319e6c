// The optimizer step on the features of a layer, in two launches without a synchronisation.
#pragma once

#include "dofla/ops/cuda/element_kernels.h"

namespace dofla::cuda {

struct FeatureStepArguments {
  int64_t heads, width;         // H, D
  const int64_t* offsets;       // [H + 1]: first feature of every head
  const double* loss;           // [H]
  const float* grad_z;          // [ΣM, D]
  const float* grad_log_alpha;  // [ΣM]
  double* norms;                // [H]: written
  AdamFactors z_factors, log_alpha_factors;
  float *z_mean, *z_square, *z;                          // [ΣM, D]
  float *log_alpha_mean, *log_alpha_square, *log_alpha;  // [ΣM]
};

cudaError_t launch_feature_step(const FeatureStepArguments& arguments, cudaStream_t stream);

}  // namespace dofla::cuda
