#include "dofla/linear/decoder.h"

#include "dofla/core/error.h"
#include "dofla/linear/linear_attention.h"

namespace dofla {
namespace {

Dense::Norm norm_of(const ModelConfig& config, const NormWeights& norm) {
  return {norm.weight, norm.bias, config.norm_epsilon, config.norm == Norm::kLayer};
}

// What the MLP's last layer receives.
Tensor inner_rows(const ModelConfig& config, const LayerWeights& weights, const Tensor& x) {
  Dense first = {.linear = config.gated_mlp ? weights.mlp_gate : weights.mlp_up,
                 .norm = norm_of(config, weights.mlp_norm),
                 .activation = config.activation};
  const Tensor activated = dense(x, first);
  if (!config.gated_mlp) return activated;
  return dense(x, {.linear = weights.mlp_up, .norm = first.norm, .factor = activated});
}

}  // namespace

bool Decoder::takes(const Transformer& model) {
  for (int64_t i = 0; i < model.config().layers; ++i)
    if (dynamic_cast<const LinearAttention*>(&model.attention(i)) == nullptr) return false;
  return true;
}

Decoder::Decoder(const Transformer& model, DecodeState state, int64_t batch)
    : model_(model),
      batch_(batch),
      state_(std::move(state)),
      inputs_(Tensor::zeros({2, batch}, DType::kI64, model.device())) {
  require(takes(model), "decoder: the model has softmax attention");
  require(batch > 0, "decoder: a batch of {}", batch);
  if (const std::vector<float>& from = model.frequencies(); !from.empty()) {
    Tensor frequencies({static_cast<int64_t>(from.size())});
    std::copy(from.begin(), from.end(), frequencies.data<float>());
    frequencies_ = frequencies.to(model.device());
  }
  for (int64_t i = 0; i < model.config().layers; ++i) {
    const int64_t found = tensors_of(i, state_).a.size(0);
    require(found == batch, "decoder: a state of {} sequences for a batch of {}", found, batch);
  }
  if (!model.device().is_cuda()) return;
  // The first time kernels are loaded and chosen, which cannot be recorded: on a copy of the state,
  // because it reads a token.
  DecodeState copy = state_.fork();
  run(copy);
  recording_.emplace(model.device(), [&] { logits_ = run(state_); });
}

Tensor Decoder::step(const std::vector<int64_t>& ids) {
  const ModelConfig& config = model_.config();
  require(static_cast<int64_t>(ids.size()) == batch_, "decoder: {} tokens for {} sequences",
          ids.size(), batch_);
  for (const int64_t id : ids)
    require(id >= 0 && id < config.vocabulary, "token id {} is outside the vocabulary of {}", id,
            config.vocabulary);
  const int64_t position = state_.position();
  require(position < config.context, "{} tokens are more than the model's context of {}",
          position + 1, config.context);
  Tensor inputs({2, batch_}, DType::kI64);
  std::copy(ids.begin(), ids.end(), inputs.data<int64_t>());
  std::fill_n(inputs.data<int64_t>() + batch_, batch_, position);
  state_.advance(1);
  if (!recording_) {
    inputs_ = inputs;
    return run(state_);
  }
  copy_bytes(Device(), inputs.raw(), model_.device(), inputs_.mutable_raw(), inputs.bytes());
  recording_->replay();
  return logits_;
}

LinearAttentionState& Decoder::tensors_of(int64_t layer, DecodeState& state) const {
  const auto& attention = dynamic_cast<const LinearAttention&>(model_.attention(layer));
  return attention.tensors_of(state.layer(layer), batch_);
}

Tensor Decoder::run(DecodeState& state) const {
  const Weights& weights = model_.weights();
  const Tensor ids = inputs_.slice(0, 1).reshape({batch_});
  const Tensor where = inputs_.slice(1, 2).reshape({batch_});
  Tensor x = embed_tokens(weights.token_embedding, weights.position_embedding, ids, where);
  for (int64_t i = 0; i < model_.config().layers; ++i) x = run_layer(i, x, state);
  return dense(x, {.linear = weights.head, .norm = norm_of(model_.config(), weights.final_norm)},
               DType::kF32);
}

Tensor Decoder::run_layer(int64_t layer, const Tensor& x, DecodeState& state) const {
  const ModelConfig& config = model_.config();
  const LayerWeights& weights = model_.weights().layers[static_cast<size_t>(layer)];
  std::vector<Tensor> rows;
  for (const Linear& projection : weights.projections)
    rows.push_back(
        dense(x, {.linear = projection, .norm = norm_of(config, weights.attention_norm)}));
  const auto heads = [&](const HeadSource& source, int64_t count) {
    return RowHeads{rows[source.projection], source.columns, count};
  };
  RowHeads q = heads(weights.q, config.heads), k = heads(weights.k, config.kv_heads);
  if (config.qk_norm || frequencies_.defined())
    place_heads(
        {config.head_size, weights.q_norm, weights.k_norm, config.norm_epsilon, frequencies_},
        inputs_.slice(1, 2).reshape({batch_}), q, k);
  const Tensor mixed =
      linear_attention_step(q, k, heads(weights.v, config.kv_heads),
                            *model_.attention(layer).features(), tensors_of(layer, state));

  const Tensor attended = dense(mixed, {.linear = weights.attention_output, .residual = x});
  const Tensor middle = config.parallel_residual ? x : attended;
  return dense(inner_rows(config, weights, middle),
               {.linear = weights.mlp_down, .residual = attended});
}

}  // namespace dofla
