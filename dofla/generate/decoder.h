// Continues sequences token by token, in the fewest and shortest steps, whatever kinds of attention
// the model's layers have. Each sequence has its own state and position. On a GPU one sequence
// takes a single launch a token where the model suits (ops/token_program.h); else a token of all
// sequences is recorded once and replayed.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "dofla/core/device_recording.h"
#include "dofla/model/transformer.h"

namespace dofla {

class Decoder {
 public:
  // Goes on from `state`: a new one, or one of B sequences, which may share its memory with others
  // as long as it has space for `capacity` tokens of a sequence and no more are read. The model
  // must outlive the decoder, and its weights stay where they are. Throws std::invalid_argument if
  // the state is of another number of sequences.
  Decoder(const Transformer& model, DecodeState state, int64_t batch = 1, int64_t capacity = 0);

  const DecodeState& state() const { return state_; }
  DecodeState release() && { return std::move(state_); }
  // For who writes to the state's memory between steps: how many tokens every sequence has.
  void set_positions(std::vector<int64_t> positions) { state_.set_positions(std::move(positions)); }
  bool in_one_launch() const { return program_ != nullptr; }  // whether a token takes only one

  // Reads one token of every sequence. Returns the logits of what follows, on the model's device;
  // on a GPU the next step writes to the same memory. Throws std::invalid_argument on an id outside
  // the vocabulary or when a sequence has as many tokens as the model can take.
  Tensor step(const std::vector<int64_t>& ids);  // B -> [B, V], F32

 private:
  void write_down();
  bool write_program();  // whether there is one
  void record();
  bool reserve(int64_t tokens);                // whether memory has moved
  Tensor logits_by(Executor& executor) const;  // [B, V]
  void check(const std::vector<int64_t>& ids) const;

  const Transformer& model_;
  int64_t batch_;
  DecodeState state_;
  int64_t capacity_ = 0;  // tokens of a sequence that fit the states
  Tensor inputs_;         // [2, B], I64, on the model's device: ids, then positions
  Tensor logits_;         // [B, V], what program and recording write
  std::unique_ptr<TokenProgram> program_;
  std::optional<Recording> recording_;
};

}  // namespace dofla
