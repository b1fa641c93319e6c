#include "dofla/linear/linear_attention.h"

namespace dofla {
namespace {

// Row rows[i] of tensors[i] becomes row i.
Tensor gather_rows(std::span<const Tensor> tensors, std::span<const int64_t> rows) {
  Shape shape = tensors.front().shape();
  shape[0] = static_cast<int64_t>(rows.size());
  Tensor out(shape, tensors.front().dtype(), tensors.front().device());
  // Rows that follow each other in one tensor are copied together.
  for (size_t begin = 0, end = 0; begin < rows.size(); begin = end) {
    for (end = begin + 1; end < rows.size(); ++end)
      if (tensors[end].raw() != tensors[begin].raw() || rows[end] != rows[end - 1] + 1) break;
    Tensor to = out.slice(static_cast<int64_t>(begin), static_cast<int64_t>(end));
    to.assign(tensors[begin].slice(rows[begin], rows[end - 1] + 1));
  }
  return out;
}

struct RecurrentState : AttentionState {
  LinearAttentionState tensors;  // empty until the first token tells the batch size

  int64_t bytes() const override { return tensors.a.defined() ? tensors.bytes() : 0; }

  std::unique_ptr<AttentionState> gather(std::span<const Sequence> sequences) const override {
    const auto rows_of = [&](Tensor LinearAttentionState::*part) {
      std::vector<Tensor> from;
      std::vector<int64_t> rows;
      for (const auto& [state, index] : sequences) {
        from.push_back(dynamic_cast<const RecurrentState&>(*state).tensors.*part);
        rows.push_back(index);
      }
      return gather_rows(from, rows);
    };
    auto out = std::make_unique<RecurrentState>();
    if (sequences.empty() || !tensors.a.defined()) return out;
    out->tensors = {rows_of(&LinearAttentionState::log_max), rows_of(&LinearAttentionState::a),
                    rows_of(&LinearAttentionState::b)};
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
