#include "dofla/linear/linear_attention.h"

#include "dofla/linear/sequence_rows.h"

namespace dofla {
namespace {

struct RecurrentState : AttentionState {
  LinearAttentionState tensors;  // empty until the first token tells the batch size

  int64_t bytes() const override { return tensors.a.defined() ? tensors.bytes() : 0; }

  std::unique_ptr<AttentionState> gather(std::span<const Sequence> sequences) const override {
    const auto rows_of = [&](Tensor LinearAttentionState::*part) {
      return gather_sequences(sequences, [&](const AttentionState& state) {
        return dynamic_cast<const RecurrentState&>(state).tensors.*part;
      });
    };
    auto out = std::make_unique<RecurrentState>();
    if (sequences.empty() || !tensors.a.defined()) return out;
    out->tensors = {rows_of(&LinearAttentionState::log_max), rows_of(&LinearAttentionState::a),
                    rows_of(&LinearAttentionState::b)};
    return out;
  }

  std::unique_ptr<AttentionState> transform(const Change& change) const override {
    auto out = std::make_unique<RecurrentState>();
    if (tensors.a.defined())
      out->tensors = {change(tensors.log_max), change(tensors.a), change(tensors.b)};
    return out;
  }
};

}  // namespace

std::unique_ptr<AttentionState> LinearAttention::new_state() const {
  return std::make_unique<RecurrentState>();
}

bool LinearAttention::reserve(AttentionState& state, int64_t batch, int64_t, DType,
                              const Device&) const {
  LinearAttentionState& tensors = dynamic_cast<RecurrentState&>(state).tensors;
  if (tensors.a.defined()) return false;
  tensors = new_linear_attention_state(batch, features_);
  return true;
}

Tensor LinearAttention::forward(const Heads& heads, const Past& past, AttentionTape* tape) const {
  const auto& [q, k, v] = heads;
  if (past.state == nullptr)
    return linear_attention(q, k, v, features_, nullptr, kLinearAttentionChunk, tape);
  reserve(*past.state, q.size(0), 0, q.dtype(), q.device());
  LinearAttentionState& tensors = dynamic_cast<RecurrentState&>(*past.state).tensors;
  return q.size(2) == 1 ? linear_attention_step(q, k, v, features_, tensors)
                        : linear_attention(q, k, v, features_, &tensors);
}

Tensor LinearAttention::write_step(TokenProgram& program, const Heads& heads,
                                   AttentionState& state) const {
  return program.linear_attention_step(heads.q, heads.k, heads.v, features_,
                                       dynamic_cast<RecurrentState&>(state).tensors);
}

AttentionGradients LinearAttention::backward(const Heads& heads, const AttentionTape& tape,
                                             const Tensor& grad_out,
                                             const GradientBuffers& buffers) const {
  LinearAttentionGradients gradients = linear_attention_backward(
      heads.q, heads.k, heads.v, features_, grad_out, kLinearAttentionChunk, tape, buffers);
  return {gradients.q, gradients.k, gradients.v, gradients.features};
}

}  // namespace dofla
