#include "dofla/model/layers.h"
#include "dofla/model/transformer.h"
#include "dofla/ops/embedding.h"

namespace dofla {
namespace {

// A block's tape as the forward would have kept it.
BlockTape run_again(const Block& block, const Tensor& x, const Tensor& ids) {
  BlockTape tape;
  SequenceExecutor run(ids, nullptr, {});
  const Heads heads = project_heads(run, block, x, &tape);
  finish_block(run, block, x, heads, &tape);
  return tape;
}

}  // namespace

void Transformer::backward(const Tape& tape, const Tensor& grad_hidden,
                           Gradients& gradients) const {
  require(static_cast<int64_t>(tape.blocks.size()) == config_.layers && tape.last.defined(),
          "backward: the tape is not that of a forward of this model");
  const int64_t batch = tape.ids.size(0), tokens = tape.ids.size(1);
  require_shape(grad_hidden, {batch, tokens, config_.width}, "backward: grad_hidden");
  Weights* weights = gradients.weights ? &*gradients.weights : nullptr;
  const bool norm = weights != nullptr && weights->final_norm.weight.defined();
  Tensor grad = normalise_backward(config_, weights_.final_norm, tape.last,
                                   grad_hidden.reshape({batch * tokens, config_.width}), Tensor(),
                                   norm ? &weights->final_norm : nullptr);
  for (int64_t layer = config_.layers - 1; layer >= 0; --layer) {
    const auto i = static_cast<size_t>(layer);
    const BlockTape saved =
        tape.recompute ? run_again(block(layer), tape.blocks[i].x, tape.ids) : tape.blocks[i];
    grad = block_backward(block(layer), saved, grad,
                          weights == nullptr ? nullptr : &weights->layers[i],
                          gradients.features.empty() ? nullptr : &gradients.features[i]);
    if (gradients.finished) gradients.finished(layer);
  }
  if (weights == nullptr) return;
  if (weights->token_embedding.defined())
    embed_backward(tape.ids.reshape({batch * tokens}), grad, weights->token_embedding);
  if (weights->position_embedding.defined())
    embed_backward(position_ids(batch, tokens, Tensor()), grad, weights->position_embedding);
}

}  // namespace dofla
