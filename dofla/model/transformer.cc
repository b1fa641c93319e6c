#include "dofla/model/transformer.h"

#include <cmath>
#include <numbers>

#include "dofla/model/softmax_attention.h"
#include "dofla/ops/activation.h"
#include "dofla/ops/embedding.h"
#include "dofla/ops/norm.h"

namespace dofla {
namespace {

// Angle per position of every rotated pair. Float32 throughout, as the teachers were trained.
std::vector<float> rope_frequencies(const Rope& rope) {
  std::vector<float> frequencies;
  for (int64_t i = 0; i < rope.dims; i += 2) {
    const double exponent = static_cast<float>(i) / static_cast<float>(rope.dims);
    double frequency = static_cast<float>(1 / std::pow(rope.theta, exponent));
    if (rope.llama3) {
      const Rope::Llama3& stretch = *rope.llama3;
      const double turns = stretch.original_context * frequency / (2 * std::numbers::pi);
      const double low = stretch.low_frequency_factor, high = stretch.high_frequency_factor;
      if (turns < low)
        frequency /= stretch.factor;
      else if (turns <= high) {
        const double smooth = (turns - low) / (high - low);
        frequency *= (1 - smooth) / stretch.factor + smooth;
      }
    }
    frequencies.push_back(static_cast<float>(frequency));
  }
  return frequencies;
}

Tensor normalise(const ModelConfig& config, const NormWeights& norm, const Tensor& x) {
  return config.norm == Norm::kLayer ? layer_norm(x, norm.weight, norm.bias, config.norm_epsilon)
                                     : rms_norm(x, norm.weight, config.norm_epsilon);
}

void activate(Activation activation, Tensor& x) {
  switch (activation) {
    case Activation::kGelu:
      return gelu(x);
    case Activation::kGeluTanh:
      return gelu_tanh(x);
    case Activation::kSilu:
      return silu(x);
    case Activation::kRelu:
      return relu(x);
  }
}

Tensor feed_forward(const ModelConfig& config, const LayerWeights& layer, const Tensor& x) {
  if (!config.gated_mlp) {
    Tensor hidden = matmul(x, layer.mlp_up);
    activate(config.activation, hidden);
    return matmul(hidden, layer.mlp_down);
  }
  Tensor hidden = matmul(x, layer.mlp_gate);
  activate(config.activation, hidden);
  multiply(hidden, matmul(x, layer.mlp_up));
  return matmul(hidden, layer.mlp_down);
}

struct Heads {
  Tensor q, k, v;
};

Heads project_heads(const ModelConfig& config, const LayerWeights& layer, const Tensor& x,
                    int64_t batch, int64_t position, const std::vector<float>& frequencies) {
  std::vector<Tensor> rows;
  for (const Linear& projection : layer.projections) rows.push_back(matmul(x, projection));
  const auto gather = [&](const HeadSource& source, int64_t heads) {
    return gather_heads(rows[source.projection], source.columns, batch, heads, config.head_size);
  };
  Heads out = {gather(layer.q, config.heads), gather(layer.k, config.kv_heads),
               gather(layer.v, config.kv_heads)};
  if (config.qk_norm) {
    out.q = rms_norm(out.q, layer.q_norm, config.norm_epsilon);
    out.k = rms_norm(out.k, layer.k_norm, config.norm_epsilon);
  }
  if (!frequencies.empty()) {
    rotate(out.q, frequencies, position);
    rotate(out.k, frequencies, position);
  }
  return out;
}

std::vector<std::unique_ptr<Attention>> softmax_everywhere(const ModelConfig& config) {
  std::vector<std::unique_ptr<Attention>> attention;
  for (int64_t i = 0; i < config.layers; ++i)
    attention.push_back(std::make_unique<SoftmaxAttention>(config.context));
  return attention;
}

}  // namespace

int64_t DecodeState::bytes() const {
  int64_t total = 0;
  for (const auto& layer : layers_) total += layer->bytes();
  return total;
}

DecodeState DecodeState::fork(int64_t copies) const {
  DecodeState copy;
  copy.position_ = position_;
  for (const auto& layer : layers_) copy.layers_.push_back(layer->clone(copies));
  return copy;
}

Transformer::Transformer(const Checkpoint& checkpoint)
    : Transformer(checkpoint, softmax_everywhere(checkpoint.config())) {}

Transformer::Transformer(const Checkpoint& checkpoint,
                         std::vector<std::unique_ptr<Attention>> attention)
    : config_(checkpoint.config()),
      weights_(load_weights(checkpoint)),
      frequencies_(rope_frequencies(config_.rope)),
      attention_(std::move(attention)) {
  require(static_cast<int64_t>(attention_.size()) == config_.layers,
          "attention for {} layers, the model has {}", attention_.size(), config_.layers);
}

DecodeState Transformer::new_state() const {
  DecodeState state;
  for (const auto& attention : attention_) state.layers_.push_back(attention->new_state());
  return state;
}

Tensor Transformer::embed_tokens(const Tensor& ids, int64_t position) const {
  const int64_t batch = ids.size(0), tokens = ids.size(1);
  require(position + tokens <= config_.context, "{} tokens are more than the model's context of {}",
          position + tokens, config_.context);
  Tensor x = embed(weights_.token_embedding, ids.reshape({batch * tokens}));
  if (weights_.position_embedding.defined()) {
    Tensor positions({batch * tokens}, DType::kI64);
    for (int64_t i = 0; i < batch * tokens; ++i)
      positions.data<int64_t>()[i] = position + i % tokens;
    add(x, embed(weights_.position_embedding, positions));
  }
  return x;
}

Tensor Transformer::attend(int64_t index, const Tensor& x, int64_t batch,
                           const ForwardOptions& options) const {
  const size_t i = static_cast<size_t>(index);
  const int64_t position = options.state == nullptr ? 0 : options.state->position_;
  const Heads heads = project_heads(config_, weights_.layers[i], x, batch, position, frequencies_);
  if (options.observer) options.observer(index, heads.q, heads.k, heads.v);
  if (options.heads_only && index + 1 == config_.layers) return {};
  AttentionState* state = options.state == nullptr ? nullptr : options.state->layers_[i].get();
  const Tensor mixed = attention_[i]->forward(heads.q, heads.k, heads.v, state);
  return matmul(mixed.reshape({x.size(0), config_.heads * config_.head_size}),
                weights_.layers[i].attention_output);
}

Tensor Transformer::forward(const Tensor& ids, const ForwardOptions& options) const {
  require(ids.rank() == 2 && ids.count() > 0, "forward: expected ids [B, T], found {}",
          to_string(ids.shape()));
  const int64_t batch = ids.size(0), tokens = ids.size(1);
  const int64_t position = options.state == nullptr ? 0 : options.state->position_;
  Tensor x = embed_tokens(ids, position);
  for (int64_t i = 0; i < config_.layers; ++i) {
    const LayerWeights& layer = weights_.layers[static_cast<size_t>(i)];
    const Tensor attended = attend(i, normalise(config_, layer.attention_norm, x), batch, options);
    if (!attended.defined()) return {};
    if (!config_.parallel_residual) add(x, attended);
    add(x, feed_forward(config_, layer, normalise(config_, layer.mlp_norm, x)));
    if (config_.parallel_residual) add(x, attended);
  }
  if (options.state != nullptr) options.state->position_ += tokens;
  return normalise(config_, weights_.final_norm, x).reshape({batch, tokens, config_.width});
}

Tensor Transformer::logits(const Tensor& hidden) const {
  return matmul(hidden, weights_.head);
}

}  // namespace dofla
