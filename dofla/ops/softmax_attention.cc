#include "dofla/ops/softmax_attention.h"

#include "dofla/ops/cpu/softmax_attention.h"
#include "dofla/ops/cuda/softmax_attention.h"

namespace dofla {
namespace {

void require_inputs(const Tensor& q, const Tensor& k, const Tensor& v) {
  require(q.rank() == 4 && k.rank() == 4, "softmax_attention: q {} and k {}", to_string(q.shape()),
          to_string(k.shape()));
  require_shape(v, k.shape(), "softmax_attention: v");
  require(k.size(0) == q.size(0) && k.size(3) == q.size(3) && k.size(1) > 0 &&
              q.size(1) % k.size(1) == 0,
          "softmax_attention: q {} does not go with k {}", to_string(q.shape()),
          to_string(k.shape()));
}

}  // namespace

Tensor softmax_attention(const Tensor& q, const Tensor& k, const Tensor& v, int64_t keys,
                         AttentionTape* tape) {
  require_inputs(q, k, v);
  require(q.size(2) <= keys && keys <= k.size(2), "softmax_attention: {} queries, {} of {} keys",
          q.size(2), keys, k.size(2));
  Tensor out({q.size(0), q.size(2), q.size(1), q.size(3)}, q.dtype(), q.device());
  if (q.device().is_cuda())
    cuda::softmax_attention(q, k, v, keys, out, tape == nullptr ? nullptr : &tape->log_sum);
  else
    cpu::softmax_attention(q, k, v, keys, out);
  if (tape != nullptr) tape->out = out;
  return out;
}

SoftmaxAttentionGradients softmax_attention_backward(const Tensor& q, const Tensor& k,
                                                     const Tensor& v, const Tensor& grad_out,
                                                     const AttentionTape& tape,
                                                     const GradientRoom& room) {
  require_inputs(q, k, v);
  require(k.size(2) == q.size(2), "softmax_attention_backward: {} queries, {} keys", q.size(2),
          k.size(2));
  require_shape(grad_out, {q.size(0), q.size(2), q.size(1), q.size(3)},
                "softmax_attention_backward: grad_out");
  require_tape(tape, q);
  if (q.device().is_cuda())
    return cuda::softmax_attention_backward(q, k, v, grad_out, tape, whole_room(room, q, k));
  SoftmaxAttentionGradients gradients = cpu::softmax_attention_backward(q, k, v, grad_out);
  move_into(room.q, gradients.q);
  move_into(room.k, gradients.k);
  move_into(room.v, gradients.v);
  return gradients;
}

}  // namespace dofla
