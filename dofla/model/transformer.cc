#include "dofla/model/transformer.h"

#include <cmath>
#include <numbers>

#include "dofla/model/layers.h"
#include "dofla/model/softmax_attention.h"
#include "dofla/ops/embedding.h"
#include "dofla/ops/rounding.h"

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

Transformer::Transformer(const Checkpoint& checkpoint, const Device& device, DType gpu_weights)
    : Transformer(checkpoint, softmax_everywhere(checkpoint.config()), device, gpu_weights) {}

Transformer::Transformer(const Checkpoint& checkpoint,
                         std::vector<std::unique_ptr<Attention>> attention, const Device& device,
                         DType gpu_weights)
    : config_(checkpoint.config()),
      weights_(device.is_cuda() ? on_gpu(load_weights(checkpoint), device, gpu_weights)
                                : load_weights(checkpoint)),
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

void Transformer::make_trainable(DType products) {
  require(!trainable_, "make_trainable: the model is trainable already");
  const DType type = weights_.token_embedding.dtype();
  if (!device().is_cuda()) {
    weights_ = transform(weights_, [](const Tensor& tensor) {
      return tensor.dtype() == DType::kF32 ? tensor.clone() : tensor.to(DType::kF32);
    });
  } else {
    require(type == DType::kF32, "weights in {} on a GPU cannot be trained: load them in F32",
            name(type));
    if (products == DType::kBF16) {
      parameters_ = weights_.parameters;
      weights_ = rounded_copies(weights_);
    }
  }
  trainable_ = true;
}

void Transformer::follow_parameters() {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Tensor& copy = weights_.parameters[i].second;
    if (copy.dtype() != DType::kF32) round_into(parameters_[i].second, copy);
  }
}

Block Transformer::block(int64_t layer) const {
  const auto i = static_cast<size_t>(layer);
  return {config_, weights_.layers[i], *attention_[i], frequencies_};
}

Tensor Transformer::embed_tokens(const Tensor& ids, int64_t position) const {
  const int64_t tokens = ids.size(1);
  require(position + tokens <= config_.context, "{} tokens are more than the model's context of {}",
          position + tokens, config_.context);
  return embed_sequences(weights_.token_embedding, weights_.position_embedding, ids, position);
}

Tensor Transformer::forward(const Tensor& ids, const ForwardOptions& options) const {
  DecodeState* state = options.state;
  Tape* tape = options.tape;
  require(ids.rank() == 2 && ids.count() > 0, "forward: expected ids [B, T], found {}",
          to_string(ids.shape()));
  require(tape == nullptr || (state == nullptr && !options.heads_only),
          "forward: a tape needs a whole pass over whole sequences");
  const int64_t batch = ids.size(0), tokens = ids.size(1);
  const int64_t position = state == nullptr ? 0 : state->position_;
  if (tape != nullptr) *tape = {.recompute = tape->recompute, .ids = ids, .blocks = {}, .last = {}};
  Tensor x = embed_tokens(ids, position);
  for (int64_t i = 0; i < config_.layers; ++i) {
    BlockTape* saved = nullptr;
    if (tape != nullptr) tape->blocks.emplace_back().x = x;
    if (tape != nullptr && !tape->recompute) saved = &tape->blocks.back();
    const Heads heads = project_heads(block(i), x, batch, position, saved);
    if (options.observer) options.observer(i, heads.q, heads.k, heads.v);
    if (options.heads_only && i + 1 == config_.layers) return {};
    AttentionState* memory =
        state == nullptr ? nullptr : state->layers_[static_cast<size_t>(i)].get();
    x = finish_block(block(i), x, heads, memory, saved);
  }
  if (state != nullptr) state->position_ += tokens;
  if (tape != nullptr) tape->last = x;
  return normalise(config_, weights_.final_norm, x).reshape({batch, tokens, config_.width});
}

Tensor Transformer::logits(const Tensor& hidden) const {
  return matmul(hidden, weights_.head, DType::kF32);
}

}  // namespace dofla
