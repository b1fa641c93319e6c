#include "dofla/ops/linear_attention.h"

#include "dofla/ops/cuda/head_tensors.h"
#include "dofla/ops/cuda/linear_attention_tensors.h"

namespace dofla::cuda {
namespace {

LinearAttentionShape shape_of(const Tensor& q, const Tensor& k, int64_t block = 1) {
  const LinearAttentionShape shape = {element_of(q), q.size(0), q.size(1), k.size(1),
                                      q.size(2),     q.size(3), block};
  require(block <= linear_attention_chunk(shape),
          "linear attention: blocks of {} keys for {} heads of width {} on a GPU: use blocks of {}",
          block, name(q.dtype()), q.size(3), linear_attention_chunk(shape));
  return shape;
}

Tensor step(const Tensor& q, const Tensor& k, const Tensor& v, const Features& features,
            LinearAttentionState& state, bool overlapped) {
  Tensor out({q.size(0), 1, q.size(1), q.size(3)}, q.dtype(), q.device());
  cuda_check(launch_linear_attention_step(shape_of(q, k), kernel_features(features), heads_of(q),
                                          heads_of(k), heads_of(v), sums_of(state),
                                          token_heads_of(out), overlapped, stream_of(q)),
             "linear attention");
  return out;
}

Tensor linear_attention_step(const Tensor& q, const Tensor& k, const Tensor& v,
                             const Features& features, LinearAttentionState& state) {
  return step(q, k, v, features, state, true);
}

Tensor linear_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Features& features,
                        LinearAttentionState* state, int64_t, Tensor* log_sum, int64_t block,
                        const std::vector<int64_t>& tokens) {
  if (q.size(2) == 1 && state != nullptr && log_sum == nullptr)
    return step(q, k, v, features, *state, false);
  Tensor out({q.size(0), q.size(2), q.size(1), q.size(3)}, q.dtype(), q.device());
  LinearAttentionShape shape = shape_of(q, k, block);
  if (!tokens.empty()) shape.own_tokens = tokens.data();
  const LinearAttentionFeatures on_gpu = kernel_features(features);
  const LinearAttentionSums sums = state == nullptr ? LinearAttentionSums{} : sums_of(*state);
  if (log_sum != nullptr)
    *log_sum = Tensor({q.size(0), q.size(1), q.size(2)}, DType::kF32, q.device());
  Tensor workspace({linear_attention_workspace_bytes(shape, on_gpu)}, DType::kU8, q.device());
  cuda_check(launch_linear_attention(shape, on_gpu, heads_of(q), heads_of(k), heads_of(v), sums,
                                     token_heads_of(out),
                                     log_sum == nullptr ? nullptr : mutable_floats(*log_sum),
                                     workspace.mutable_raw(), stream_of(q)),
             "linear attention");
  return out;
}

LinearAttentionGradients linear_attention_backward(const Tensor& q, const Tensor& k,
                                                   const Tensor& v, const Features& features,
                                                   const Tensor& grad_out, int64_t chunk,
                                                   const AttentionTape& known,
                                                   const GradientBuffers& given, int64_t block) {
  const GradientBuffers buffers = allocate_missing(given, q, k);
  AttentionTape tape = known;
  if (!tape.log_sum.defined())
    tape.out = linear_attention(q, k, v, features, nullptr, chunk, &tape.log_sum, block, {});
  LinearAttentionGradients gradients = {buffers.q, buffers.k, buffers.v, gradients_like(features)};
  const LinearAttentionShape shape = shape_of(q, k, block);
  const LinearAttentionFeatures on_gpu = kernel_features(features);
  Tensor workspace({linear_attention_backward_workspace_bytes(shape, on_gpu)}, DType::kU8,
                   q.device());
  cuda_check(
      launch_linear_attention_backward(
          shape, on_gpu, heads_of(q), heads_of(k), heads_of(v),
          token_heads_of(std::as_const(tape.out)), floats(tape.log_sum), token_heads_of(grad_out),
          {heads_of(gradients.q), heads_of(gradients.k), heads_of(gradients.v),
           mutable_floats(gradients.features.z), mutable_floats(gradients.features.log_alpha),
           mutable_floats(gradients.features.u), mutable_floats(gradients.features.norm_weight)},
          workspace.mutable_raw(), stream_of(q)),
      "linear attention backward");
  return gradients;
}

}  // namespace

const LinearAttentionBackend kLinearAttention = {linear_attention, linear_attention_step,
                                                 linear_attention_backward};

}  // namespace dofla::cuda
