#include "dofla/ops/softmax_attention.h"

#include "dofla/ops/cuda/head_tensors.h"
#include "dofla/ops/cuda/softmax_attention_kernels.h"

namespace dofla::cuda {
namespace {

SoftmaxAttentionShape shape_of(const Tensor& q, const Tensor& k, int64_t keys) {
  return {element_of(q), q.size(0), q.size(1), k.size(1), q.size(2), keys, q.size(3)};
}

Tensor workspace_of(int64_t bytes, const Tensor& x) {
  return Tensor({bytes}, DType::kU8, x.device());
}

void softmax_attention(const Tensor& q, const Tensor& k, const Tensor& v, int64_t keys,
                       const Tensor& past, Tensor& out, Tensor* log_sum) {
  const SoftmaxAttentionShape shape = shape_of(q, k, keys);
  Tensor workspace = workspace_of(softmax_attention_workspace_bytes(shape), q);
  if (log_sum != nullptr)
    *log_sum = Tensor({q.size(0), q.size(1), q.size(2)}, DType::kF32, q.device());
  cuda_check(launch_softmax_attention(shape, heads_of(q), heads_of(k), heads_of(v), integers(past),
                                      token_heads_of(out),
                                      log_sum == nullptr ? nullptr : mutable_floats(*log_sum),
                                      workspace.mutable_raw(), stream_of(q)),
             "softmax attention");
}

SoftmaxAttentionGradients softmax_attention_backward(const Tensor& q, const Tensor& k,
                                                     const Tensor& v, const Tensor& grad_out,
                                                     const AttentionTape& known,
                                                     const GradientBuffers& given) {
  GradientBuffers buffers = allocate_missing(given, q, k);
  AttentionTape tape = known;
  if (!tape.log_sum.defined()) {
    tape.out = Tensor(grad_out.shape(), q.dtype(), q.device());
    softmax_attention(q, k, v, k.size(2), Tensor(), tape.out, &tape.log_sum);
  }
  const SoftmaxAttentionShape shape = shape_of(q, k, k.size(2));
  Tensor workspace = workspace_of(softmax_attention_backward_workspace_bytes(shape), q);
  cuda_check(
      launch_softmax_attention_backward(
          shape, heads_of(q), heads_of(k), heads_of(v), token_heads_of(std::as_const(tape.out)),
          floats(tape.log_sum), token_heads_of(grad_out),
          {heads_of(buffers.q), heads_of(buffers.k), heads_of(buffers.v)}, workspace.mutable_raw(),
          stream_of(q)),
      "softmax attention backward");
  return {buffers.q, buffers.k, buffers.v};
}

}  // namespace

const SoftmaxAttentionBackend kSoftmaxAttention = {softmax_attention, softmax_attention_backward};

}  // namespace dofla::cuda
