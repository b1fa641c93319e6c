#include "dofla/linear/linear_attention.h"

namespace dofla {
namespace {

struct RecurrentState : AttentionState {
  LinearAttentionState tensors;  // empty until the first token tells the batch size

  int64_t bytes() const override { return tensors.a.defined() ? tensors.bytes() : 0; }
  std::unique_ptr<AttentionState> clone(int64_t copies) const override {
    auto copy = std::make_unique<RecurrentState>();
    if (tensors.a.defined()) copy->tensors = tensors.fork(copies);
    return copy;
  }
};

}  // namespace

std::unique_ptr<AttentionState> LinearAttention::new_state() const {
  return std::make_unique<RecurrentState>();
}

LinearAttentionState& LinearAttention::tensors_of(AttentionState& state, int64_t batch) const {
  LinearAttentionState& tensors = dynamic_cast<RecurrentState&>(state).tensors;
  if (!tensors.a.defined()) tensors = new_linear_attention_state(batch, features_);
  return tensors;
}

Tensor LinearAttention::forward(const Tensor& q, const Tensor& k, const Tensor& v,
                                AttentionState* state, AttentionTape* tape) const {
  if (state == nullptr)
    return linear_attention(q, k, v, features_, nullptr, kLinearAttentionChunk, tape);
  return linear_attention(q, k, v, features_, &tensors_of(*state, q.size(0)));
}

AttentionGradients LinearAttention::backward(const Tensor& q, const Tensor& k, const Tensor& v,
                                             const AttentionTape& tape, const Tensor& grad_out,
                                             const GradientRoom& room) const {
  LinearAttentionGradients gradients =
      linear_attention_backward(q, k, v, features_, grad_out, kLinearAttentionChunk, tape, room);
  return {gradients.q, gradients.k, gradients.v, {gradients.z, gradients.log_alpha}};
}

}  // namespace dofla
