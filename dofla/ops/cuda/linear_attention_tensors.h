// Features and states as the kernels of linear attention take them.
#pragma once

#include "dofla/ops/cuda/linear_attention_kernels.h"
#include "dofla/ops/cuda/tensors.h"
#include "dofla/ops/linear_attention.h"

namespace dofla::cuda {

inline LinearAttentionFeatures kernel_features(const Features& features) {
  return {features.counts.data(), floats(features.z), floats(features.log_alpha),
          features.subtract_norm, floats(features.u), floats(features.norm_weight)};
}

inline LinearAttentionSums sums_of(LinearAttentionState& state) {
  return {mutable_floats(state.log_max), mutable_floats(state.a), mutable_floats(state.b)};
}

}  // namespace dofla::cuda
