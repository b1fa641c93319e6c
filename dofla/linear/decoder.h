// Continues sequences with a linear model token by token, in the fewest and shortest steps. On a
// GPU one sequence takes a single launch a token where the model suits (ops/decode.h), and else, or
// for any number of sequences side by side, five launches a layer of GPT-2, recorded once and
// replayed for every token. Each sequence has its own state.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "dofla/core/device_recording.h"
#include "dofla/model/transformer.h"
#include "dofla/ops/decode.h"

namespace dofla {

class Decoder {
 public:
  // Whether the model has linear attention in every layer.
  static bool takes(const Transformer& model);

  // Goes on from `state`: a new one, or one left by a forward over the beginnings of B sequences.
  // The model must outlive the decoder, and its weights stay where they are. Throws
  // std::invalid_argument unless takes(model) and the state is of so many sequences.
  Decoder(const Transformer& model, DecodeState state, int64_t batch = 1);

  const DecodeState& state() const { return state_; }
  bool in_one_launch() const { return program_ != nullptr; }  // whether a token takes only one

  // Reads one token of every sequence. Returns the logits of what follows, on the model's device;
  // on a GPU the next step writes to the same memory. Throws std::invalid_argument on an id outside
  // the vocabulary or when the context is full.
  Tensor step(const std::vector<int64_t>& ids);  // B -> [B, V], F32

 private:
  bool write_program();  // whether there is one
  LinearAttentionState& tensors_of(int64_t layer, DecodeState& state) const;
  Tensor run(TokenSteps& steps, DecodeState& state) const;  // to logits
  Tensor run_layer(TokenSteps& steps, int64_t layer, const Tensor& x, DecodeState& state) const;

  const Transformer& model_;
  int64_t batch_;
  DecodeState state_;
  Tensor inputs_;       // [2, B], I64, on the model's device: ids, then positions
  Tensor frequencies_;  // of the rotary embedding, on the model's device, or undefined
  Tensor logits_;       // [B, V], what program and recording write
  std::unique_ptr<TokenProgram> program_;
  std::optional<Recording> recording_;
};

}  // namespace dofla
