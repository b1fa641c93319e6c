#include "dofla/ops/cuda/linear_attention.h"

#include "dofla/ops/cuda/head_tensors.h"
#include "dofla/ops/cuda/linear_attention_kernels.h"

namespace dofla::cuda {
namespace {

LinearAttentionShape shape_of(const Tensor& q, const Tensor& k) {
  return {element_of(q), q.size(0), q.size(1), k.size(1), q.size(2), q.size(3)};
}

LinearAttentionFeatures kernel_features(const Features& features) {
  return {features.counts.data(), floats(features.z), floats(features.log_alpha),
          features.subtract_norm};
}

Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const Features& features,
              const LinearAttentionSums& sums, float* log_sum) {
  Tensor out({q.size(0), q.size(2), q.size(1), q.size(3)}, q.dtype(), q.device());
  const LinearAttentionShape shape = shape_of(q, k);
  const LinearAttentionFeatures on_gpu = kernel_features(features);
  if (q.size(2) == 1 && sums.log_max != nullptr && log_sum == nullptr) {
    cuda_check(launch_linear_attention_step(shape, on_gpu, heads_of(q), heads_of(k), heads_of(v),
                                            sums, token_heads_of(out), false, stream_of(q)),
               "linear attention");
    return out;
  }
  Tensor workspace({linear_attention_workspace_bytes(shape, on_gpu)}, DType::kU8, q.device());
  cuda_check(
      launch_linear_attention(shape, on_gpu, heads_of(q), heads_of(k), heads_of(v), sums,
                              token_heads_of(out), log_sum, workspace.mutable_raw(), stream_of(q)),
      "linear attention");
  return out;
}

}  // namespace

Tensor linear_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Features& features,
                        LinearAttentionState& state, int64_t) {
  return attend(q, k, v, features,
                {mutable_floats(state.log_max), mutable_floats(state.a), mutable_floats(state.b)},
                nullptr);
}

LinearAttentionGradients linear_attention_backward(const Tensor& q, const Tensor& k,
                                                   const Tensor& v, const Features& features,
                                                   const Tensor& grad_out) {
  Tensor log_sum({q.size(0), q.size(1), q.size(2)}, DType::kF32, q.device());
  const Tensor out = attend(q, k, v, features, {}, mutable_floats(log_sum));
  const auto like = [](const Tensor& x) { return Tensor(x.shape(), x.dtype(), x.device()); };
  LinearAttentionGradients gradients = {like(q), like(k), like(v), like(features.z),
                                        like(features.log_alpha)};
  const LinearAttentionShape shape = shape_of(q, k);
  const LinearAttentionFeatures on_gpu = kernel_features(features);
  Tensor workspace({linear_attention_backward_workspace_bytes(shape, on_gpu)}, DType::kU8,
                   q.device());
  cuda_check(launch_linear_attention_backward(
                 shape, on_gpu, heads_of(q), heads_of(k), heads_of(v), token_heads_of(out),
                 floats(log_sum), token_heads_of(grad_out),
                 {heads_of(gradients.q), heads_of(gradients.k), heads_of(gradients.v),
                  mutable_floats(gradients.z), mutable_floats(gradients.log_alpha)},
                 workspace.mutable_raw(), stream_of(q)),
             "linear attention backward");
  return gradients;
}

}  // namespace dofla::cuda
