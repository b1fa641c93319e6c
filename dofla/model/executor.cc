#include "dofla/model/executor.h"

#include "dofla/core/error.h"
#include "dofla/ops/embedding.h"

namespace dofla {

Tensor SequenceExecutor::embed(const Tensor& tokens, const Tensor& positions) {
  return embed_sequences(tokens, positions, ids_, past_.tokens);
}

Tensor SequenceExecutor::dense(const Tensor& x, const Dense& layer, std::optional<DType> result,
                               Tensor* product) {
  const bool shared =
      layer.norm.weight.defined() && (product != nullptr || !is_single_launch(x, layer));
  if (!shared) {
    rows_ = norm_weight_ = normal_ = Tensor();
    return dofla::dense(x, layer, result, product);
  }
  if (!normal_.defined() || rows_.raw() != x.raw() ||
      norm_weight_.raw() != layer.norm.weight.raw()) {
    normal_ = Tensor();  // its memory can be used again
    normal_ = normalise(layer.norm, x);
    rows_ = x, norm_weight_ = layer.norm.weight;
  }
  return dense_after_norm(normal_, layer, result, product);
}

void SequenceExecutor::place_heads(const Placement& placement, Heads& heads) {
  dofla::place_heads(placement, past_.tokens, heads.q, heads.k);
}

Tensor SequenceExecutor::attend(int64_t layer, const Attention& attention, const Heads& heads,
                                AttentionTape* tape) {
  rows_ = norm_weight_ = normal_ = Tensor();
  Past past = past_;
  if (state_ != nullptr) past.state = &state_->layer(layer);
  const Tensor mixed = attention.forward(heads, past, tape);  // [B, T, H, D]
  return mixed.reshape({mixed.size(0) * mixed.size(1), mixed.size(2) * mixed.size(3)});
}

Tensor ProgramExecutor::embed(const Tensor& tokens, const Tensor& positions) {
  return program_.embed(tokens, positions);
}

Tensor ProgramExecutor::dense(const Tensor& x, const Dense& layer, std::optional<DType> result,
                              Tensor* product) {
  require(product == nullptr, "a token program keeps nothing for a backward");
  return program_.dense(x, layer, result);
}

void ProgramExecutor::place_heads(const Placement& placement, Heads&) {
  program_.place_heads(placement);
}

Tensor ProgramExecutor::attend(int64_t layer, const Attention& attention, const Heads& heads,
                               AttentionTape*) {
  Tensor mixed = attention.write_step(program_, heads, state_.layer(layer));
  if (mixed.defined()) return mixed;
  complete_ = false;
  return Tensor({1, heads.q.size(1) * heads.q.size(3)}, DType::kF32, heads.q.device());
}

}  // namespace dofla
