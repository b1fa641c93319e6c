// One decoder for every supported family. The families differ in tensor names and in the switches
// of ModelConfig; the computation is written once.
#pragma once

#include <memory>
#include <vector>

#include "dofla/checkpoint/checkpoint.h"
#include "dofla/model/attention.h"
#include "dofla/model/block.h"
#include "dofla/model/decode_state.h"
#include "dofla/model/gradients.h"
#include "dofla/model/observer.h"
#include "dofla/model/weights.h"

namespace dofla {

// What a forward leaves for the backward.
struct Tape {
  bool recompute = false;  // keep only each block's input, and run the block again in the backward

  Tensor ids;                     // [B, T]
  std::vector<BlockTape> blocks;  // one a layer
  Tensor last;                    // [B·T, C], what the final norm receives
};

struct ForwardOptions {
  DecodeState* state = nullptr;  // continue these sequences; without it the call stands alone
  Observer observer;             // sees q, k, v of every layer
  bool heads_only = false;       // stop once the observer has seen the last layer: no result
  Tape* tape = nullptr;          // filled for a backward; such a call stands alone
  // Begin with this block, which receives `x`, a tape's BlockTape::x of the same ids.
  int64_t first_block = 0;
  Tensor x = {};
};

class Transformer {
 public:
  // Weights stay where they are, mapped and in their own type. Throws Error on a missing or
  // misshapen tensor.
  // On a GPU they are copies in BF16 with norms in F32, or all in F32 to be trained: activations
  // are in the type of the weights.
  explicit Transformer(const Checkpoint& checkpoint, const Device& device = {},
                       DType gpu_weights = DType::kBF16);  // softmax
  Transformer(const Checkpoint& checkpoint, std::vector<std::unique_ptr<Attention>> attention,
              const Device& device = {}, DType gpu_weights = DType::kBF16);

  const ModelConfig& config() const { return config_; }
  const Weights& weights() const { return weights_; }
  const Device& device() const { return weights_.token_embedding.device(); }
  const Attention& attention(int64_t layer) const {
    return *attention_[static_cast<size_t>(layer)];
  }
  // Puts another attention into a layer and returns the one that was there.
  std::unique_ptr<Attention> exchange_attention(int64_t layer,
                                                std::unique_ptr<Attention> attention);

  DecodeState new_state() const;  // of any number of sequences, until the first token
  // Makes space in a state for so many sequences of so many tokens. True where its memory is
  // another one then.
  bool reserve(DecodeState& state, int64_t batch, int64_t tokens) const;

  // How many tokens a sequence can have. Learnt positions end with the context, and so do rotary
  // ones as long as a layer has a cache that grows. Without such a layer nothing does.
  int64_t most_tokens() const;

  // Hidden states after the final norm, [B, T, C] in float32 (on a GPU in the type of the weights);
  // undefined with heads_only. Throws std::invalid_argument on ids outside the vocabulary or
  // more tokens than most_tokens().
  Tensor forward(const Tensor& ids,  // [B, T], I64
                 const ForwardOptions& options = {}) const;

  // From the gradient of a forward's result to those of what is trained, which are added to
  // `gradients`. The gradients of the head are not in here: cross_entropy_backward has them.
  void backward(const Tape& tape,
                const Tensor& grad_hidden,  // [B, T, C]
                Gradients& gradients) const;

  // Gives the model parameters that an optimizer can write to: float32 copies of the weights that
  // are to be trained. The others stay mapped, in their own type. On a GPU the model must have been
  // loaded in F32, and from then on computes with `products`: in BF16 with copies of the
  // parameters, which have to follow them; the parameters that are not trained move to the CPU.
  void make_trainable(DType products = DType::kBF16, Trained what = {.weights = true});
  bool is_trainable() const { return trainable_; }
  // All weights under their names in the checkpoint, those that are trained in float32; on a GPU
  // none without F32.
  const NamedTensors& parameters() const {
    return parameters_.empty() ? weights_.parameters : parameters_;
  }
  void follow_parameters();  // after every change of them

  // All blocks by any executor, from the embedding to what the final norm receives, [R, C]. Of the
  // options `state` and the ids are the executor's affair. forward() is this with the final norm.
  Tensor run(Executor& executor, const ForwardOptions& options = {}) const;
  // The final norm and the head: logits of rows that run() returns.
  Dense head() const;

  // Next-token logits [N, V] in float32 of hidden rows [N, C].
  Tensor logits(const Tensor& hidden) const;

 private:
  Block block(int64_t layer) const;

  ModelConfig config_;
  Weights weights_;          // to compute with
  NamedTensors parameters_;  // what is trained, where weights_ are only copies of it
  bool trainable_ = false;
  Tensor frequencies_;                                 // of the rotary embedding; or undefined
  std::vector<std::unique_ptr<Attention>> attention_;  // one a layer
};

}  // namespace dofla
