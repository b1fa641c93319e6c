#include "dofla/linear/decoder.h"

#include "dofla/core/error.h"
#include "dofla/linear/linear_attention.h"

namespace dofla {
namespace {

Dense::Norm norm_of(const ModelConfig& config, const NormWeights& norm) {
  return {norm.weight, norm.bias, config.norm_epsilon, config.norm == Norm::kLayer};
}

// Done at once.
class Operations : public TokenSteps {
 public:
  explicit Operations(const Tensor& inputs)  // [2, B]
      : ids_(inputs.slice(0, 1).reshape({inputs.size(1)})),
        where_(inputs.slice(1, 2).reshape({inputs.size(1)})) {}

  Tensor embed_tokens(const Tensor& tokens, const Tensor& positions) override {
    return dofla::embed_tokens(tokens, positions, ids_, where_);
  }
  Tensor dense(const Tensor& x, const Dense& layer, std::optional<DType> result) override {
    return dofla::dense(x, layer, result);
  }
  void place_heads(const Placement& placement, RowHeads& q, RowHeads& k) override {
    dofla::place_heads(placement, where_, q, k);
  }
  Tensor linear_attention_step(const RowHeads& q, const RowHeads& k, const RowHeads& v,
                               const Features& features, LinearAttentionState& state) override {
    return dofla::linear_attention_step(q, k, v, features, state);
  }

 private:
  Tensor ids_, where_;
};

// What the MLP's last layer receives.
Tensor inner_rows(TokenSteps& steps, const ModelConfig& config, const LayerWeights& weights,
                  const Tensor& x) {
  Dense first = {.linear = config.gated_mlp ? weights.mlp_gate : weights.mlp_up,
                 .norm = norm_of(config, weights.mlp_norm),
                 .activation = config.activation};
  Tensor activated = steps.dense(x, first);
  if (!config.gated_mlp) return activated;
  return steps.dense(x, {.linear = weights.mlp_up, .norm = first.norm, .factor = activated});
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
  if (!model.device().is_cuda() || write_program()) return;
  // The first time kernels are loaded and chosen, which cannot be recorded: on a copy of the state,
  // because it reads a token.
  DecodeState copy = state_.fork();
  Operations at_once(inputs_);
  run(at_once, copy);
  recording_.emplace(model.device(), [&] { logits_ = run(at_once, state_); });
}

bool Decoder::write_program() {
  if (batch_ != 1) return false;
  program_ = token_program(model_.device());
  logits_ = run(*program_, state_);
  if (program_->finish()) return true;
  program_ = nullptr;
  return false;
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
  state_.advance(1);
  if (program_ != nullptr) {
    program_->run(ids[0], position);
    return logits_;
  }
  Tensor inputs({2, batch_}, DType::kI64);
  std::copy(ids.begin(), ids.end(), inputs.data<int64_t>());
  std::fill_n(inputs.data<int64_t>() + batch_, batch_, position);
  if (!recording_) {
    Operations at_once(inputs);
    return run(at_once, state_);
  }
  copy_bytes(Device(), inputs.raw(), model_.device(), inputs_.mutable_raw(), inputs.bytes());
  recording_->replay();
  return logits_;
}

LinearAttentionState& Decoder::tensors_of(int64_t layer, DecodeState& state) const {
  const auto& attention = dynamic_cast<const LinearAttention&>(model_.attention(layer));
  return attention.tensors_of(state.layer(layer), batch_);
}

Tensor Decoder::run(TokenSteps& steps, DecodeState& state) const {
  const Weights& weights = model_.weights();
  Tensor x = steps.embed_tokens(weights.token_embedding, weights.position_embedding);
  for (int64_t i = 0; i < model_.config().layers; ++i) x = run_layer(steps, i, x, state);
  return steps.dense(x,
                     {.linear = weights.head, .norm = norm_of(model_.config(), weights.final_norm)},
                     DType::kF32);
}

Tensor Decoder::run_layer(TokenSteps& steps, int64_t layer, const Tensor& x,
                          DecodeState& state) const {
  const ModelConfig& config = model_.config();
  const LayerWeights& weights = model_.weights().layers[static_cast<size_t>(layer)];
  std::vector<Tensor> rows;
  for (const Linear& projection : weights.projections)
    rows.push_back(
        steps.dense(x, {.linear = projection, .norm = norm_of(config, weights.attention_norm)}));
  const auto heads = [&](const HeadSource& source, int64_t count) {
    return RowHeads{rows[source.projection], source.columns, count};
  };
  RowHeads q = heads(weights.q, config.heads), k = heads(weights.k, config.kv_heads);
  if (config.qk_norm || frequencies_.defined())
    steps.place_heads(
        {config.head_size, weights.q_norm, weights.k_norm, config.norm_epsilon, frequencies_}, q,
        k);
  const Tensor mixed =
      steps.linear_attention_step(q, k, heads(weights.v, config.kv_heads),
                                  *model_.attention(layer).features(), tensors_of(layer, state));

  const Tensor attended = steps.dense(mixed, {.linear = weights.attention_output, .residual = x});
  const Tensor middle = config.parallel_residual ? x : attended;
  return steps.dense(inner_rows(steps, config, weights, middle),
                     {.linear = weights.mlp_down, .residual = attended});
}

}  // namespace dofla
