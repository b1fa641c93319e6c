#include "dofla/model/transformer.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "dofla/model/layers.h"
#include "dofla/model/softmax_attention.h"
#include "dofla/ops/rounding.h"

namespace dofla {
namespace {

// Angle per position of every rotated pair. Float32 throughout, as the teachers were trained.
Tensor rope_frequencies(const Rope& rope) {
  if (rope.dims == 0) return {};
  Tensor frequencies({(rope.dims + 1) / 2});
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
    frequencies.data<float>()[i / 2] = static_cast<float>(frequency);
  }
  return frequencies;
}

std::vector<std::unique_ptr<Attention>> softmax_everywhere(const ModelConfig& config) {
  std::vector<std::unique_ptr<Attention>> attention;
  for (int64_t i = 0; i < config.layers; ++i)
    attention.push_back(std::make_unique<SoftmaxAttention>(config));
  return attention;
}

}  // namespace

Transformer::Transformer(const Checkpoint& checkpoint, const Device& device, DType gpu_weights)
    : Transformer(checkpoint, softmax_everywhere(checkpoint.config()), device, gpu_weights) {}

Transformer::Transformer(const Checkpoint& checkpoint,
                         std::vector<std::unique_ptr<Attention>> attention, const Device& device,
                         DType gpu_weights)
    : config_(checkpoint.config()),
      weights_(device.is_cuda() ? on_gpu(load_weights(checkpoint), device, gpu_weights)
                                : load_weights(checkpoint)),
      frequencies_(rope_frequencies(config_.rope).to(device)),
      attention_(std::move(attention)) {
  require(static_cast<int64_t>(attention_.size()) == config_.layers,
          "attention for {} layers, the model has {}", attention_.size(), config_.layers);
}

std::unique_ptr<Attention> Transformer::exchange_attention(int64_t layer,
                                                           std::unique_ptr<Attention> attention) {
  require(layer >= 0 && layer < config_.layers && attention != nullptr,
          "exchange_attention: layer {} of {}, with an attention", layer, config_.layers);
  return std::exchange(attention_[static_cast<size_t>(layer)], std::move(attention));
}

DecodeState Transformer::new_state() const {
  std::vector<std::unique_ptr<AttentionState>> layers;
  for (const auto& attention : attention_) layers.push_back(attention->new_state());
  return DecodeState(std::move(layers));
}

bool Transformer::reserve(DecodeState& state, int64_t batch, int64_t tokens) const {
  // The type of the activations.
  const DType type = device().is_cuda() ? weights_.token_embedding.dtype() : DType::kF32;
  bool moved = false;
  for (int64_t i = 0; i < config_.layers; ++i)
    moved |= attention(i).reserve(state.layer(i), batch, tokens, type, device());
  state.advance(batch, 0);
  return moved;
}

int64_t Transformer::most_tokens() const {
  constexpr int64_t kExactPositions = int64_t{1} << 24;  // as numbers in float32
  const bool grows = std::ranges::any_of(attention_, [](const auto& of) { return of->grows(); });
  return grows || weights_.position_embedding.defined() ? config_.context : kExactPositions;
}

void Transformer::make_trainable(DType products, Trained what) {
  require(!trainable_, "make_trainable: the model is trainable already");
  const DType type = weights_.token_embedding.dtype();
  require(!weights_.token_embedding.is_scaled(), "make_trainable: the weights are rounded");
  const auto trained = trained_memory(weights_, what);
  if (!device().is_cuda()) {
    weights_ = transform(weights_, [&](const Tensor& tensor) {
      if (!trained.contains(tensor.raw())) return tensor;
      return tensor.dtype() == DType::kF32 ? tensor.clone() : tensor.to(DType::kF32);
    });
  } else {
    require(type == DType::kF32, "weights in {} on a GPU cannot be trained: load them in F32",
            name(type));
    if (products == DType::kBF16) {
      parameters_ = weights_.parameters;
      weights_ = rounded_copies(weights_);
      for (auto& [name, parameter] : parameters_)
        if (!trained.contains(parameter.raw())) parameter = parameter.to(Device());
    }
  }
  trainable_ = true;
}

void Transformer::follow_parameters() {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Tensor& copy = weights_.parameters[i].second;
    const Tensor& parameter = parameters_[i].second;
    if (copy.dtype() != DType::kF32 && parameter.device().is_cuda()) round_into(parameter, copy);
  }
}

Block Transformer::block(int64_t layer) const {
  const auto i = static_cast<size_t>(layer);
  return {layer, config_, weights_.layers[i], *attention_[i], frequencies_};
}

Tensor Transformer::run(Executor& executor, const ForwardOptions& options) const {
  Tape* tape = options.tape;
  Tensor x = options.x.defined()
                 ? options.x
                 : executor.embed(weights_.token_embedding, weights_.position_embedding);
  for (int64_t i = options.first_block; i < config_.layers; ++i) {
    BlockTape* saved = nullptr;
    if (tape != nullptr) tape->blocks.emplace_back().x = x;
    if (tape != nullptr && !tape->recompute) saved = &tape->blocks.back();
    const Heads heads = project_heads(executor, block(i), x, saved);
    if (options.observer) options.observer(i, heads.q, heads.k, heads.v);
    if (options.heads_only && i + 1 == config_.layers) return {};
    x = finish_block(executor, block(i), x, heads, saved);
  }
  return x;
}

Tensor Transformer::forward(const Tensor& ids, const ForwardOptions& options) const {
  DecodeState* state = options.state;
  Tape* tape = options.tape;
  require(ids.rank() == 2 && ids.count() > 0, "forward: expected ids [B, T], found {}",
          to_string(ids.shape()));
  require(tape == nullptr || (state == nullptr && !options.heads_only),
          "forward: a tape needs a whole pass over whole sequences");
  require(options.x.defined() ? state == nullptr && tape == nullptr : options.first_block == 0,
          "forward: to begin within the model needs what its block receives, and no state or tape");
  const int64_t batch = ids.size(0), tokens = ids.size(1);
  const Past past = state == nullptr ? Past{} : state->past(batch, device());
  require(past.most + tokens <= most_tokens(), "{} tokens are more than the model's context of {}",
          past.most + tokens, most_tokens());
  if (tape != nullptr) *tape = {.recompute = tape->recompute, .ids = ids, .blocks = {}, .last = {}};
  SequenceExecutor executor(ids, state, past);
  const Tensor x = run(executor, options);
  if (options.heads_only) return {};
  if (state != nullptr) state->advance(batch, tokens);
  if (tape != nullptr) tape->last = x;
  return normalise(head().norm, x).reshape({batch, tokens, config_.width});
}

Dense Transformer::head() const {
  return {.linear = weights_.head, .norm = norm_of(config_, weights_.final_norm)};
}

Tensor Transformer::logits(const Tensor& hidden) const {
  return matmul(hidden, weights_.head, DType::kF32);
}

}  // namespace dofla
