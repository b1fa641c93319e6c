#include "dofla/ops/softmax_attention.h"

namespace dofla {
namespace {

void require_inputs(const Tensor& q, const Tensor& k, const Tensor& v) {
  // A decoder comes here for every token, and wants no message unless it is needed.
  if (q.rank() != 4 || k.rank() != 4 || k.size(0) != q.size(0) || k.size(3) != q.size(3) ||
      k.size(1) == 0 || q.size(1) % k.size(1) != 0)
    throw std::invalid_argument(fmt::format("softmax_attention: q {} does not go with k {}",
                                            to_string(q.shape()), to_string(k.shape())));
  require_shape(v, k.shape(), "softmax_attention: v");
}

void require_past(const Tensor& past, const Tensor& q, int64_t keys) {
  if (!past.defined()) return;
  require_shape(past, {q.size(0)}, "softmax_attention: past");
  require(past.dtype() == DType::kI64 && past.device() == q.device(),
          "softmax_attention: past: expected I64 on the device of the queries");
  for (int64_t b = 0; !past.device().is_cuda() && b < past.count(); ++b) {
    const int64_t before = past.data<int64_t>()[b];
    require(before >= 0 && before + q.size(2) <= keys,
            "softmax_attention: {} keys before {} queries, of {} keys", before, q.size(2), keys);
  }
}

const SoftmaxAttentionBackend& softmax_attention_backend(const Tensor& x) {
  return x.device().is_cuda() ? cuda::kSoftmaxAttention : cpu::kSoftmaxAttention;
}

}  // namespace

Tensor softmax_attention(const Tensor& q, const Tensor& k, const Tensor& v, int64_t keys,
                         AttentionTape* tape, const Tensor& past) {
  require_inputs(q, k, v);
  require(q.size(2) <= keys && keys <= k.size(2), "softmax_attention: {} queries, {} of {} keys",
          q.size(2), keys, k.size(2));
  require_past(past, q, keys);
  Tensor out({q.size(0), q.size(2), q.size(1), q.size(3)}, q.dtype(), q.device());
  softmax_attention_backend(q).forward(q, k, v, keys, past, out,
                                       tape == nullptr ? nullptr : &tape->log_sum);
  if (tape != nullptr) tape->out = out;
  return out;
}

SoftmaxAttentionGradients softmax_attention_backward(const Tensor& q, const Tensor& k,
                                                     const Tensor& v, const Tensor& grad_out,
                                                     const AttentionTape& tape,
                                                     const GradientBuffers& buffers) {
  require_inputs(q, k, v);
  require(q.size(2) <= k.size(2), "softmax_attention_backward: {} queries, {} keys", q.size(2),
          k.size(2));
  require_shape(grad_out, {q.size(0), q.size(2), q.size(1), q.size(3)},
                "softmax_attention_backward: grad_out");
  require_tape(tape, q);
  return softmax_attention_backend(q).backward(q, k, v, grad_out, tape, buffers);
}

}  // namespace dofla
