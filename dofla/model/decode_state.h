// What a model remembers of sequences between two calls. The sequences of a batch may have seen
// different numbers of tokens: each has its own position.
#pragma once

#include <memory>
#include <vector>

#include "dofla/model/attention.h"

namespace dofla {

class DecodeState {
 public:
  explicit DecodeState(std::vector<std::unique_ptr<AttentionState>> layers)
      : layers_(std::move(layers)) {}

  // Sequences; 0 before the first token, when it can still be any number of them.
  int64_t batch() const { return static_cast<int64_t>(positions_.size()); }
  const std::vector<int64_t>& positions() const { return positions_; }  // tokens seen, by sequence
  int64_t longest() const;                                              // the most of them; or 0
  int64_t bytes() const;

  // Independent copies. fork: of all sequences, so many times in a row.
  DecodeState fork(int64_t copies = 1) const;
  // Of these sequences, in this order.
  DecodeState select(const std::vector<int64_t>& sequences) const;
  // Of all sequences of several states of one model. None may be empty.
  static DecodeState join(const std::vector<const DecodeState*>& states);

  // The same with change(tensor) in place of every tensor of the layers' states, each [B, …].
  DecodeState transform(const AttentionState::Change& change) const;
  std::vector<Tensor> tensors() const;  // all of these
  // Sequences [begin, end) in the same memory: what one handle writes the other sees.
  DecodeState share(int64_t begin, int64_t end) const;
  // Writes sequence `from` of `source` over sequence `to` of this state, in its memory, which must
  // have space for the tokens of that one: Transformer::reserve.
  void put(int64_t to, const DecodeState& source, int64_t from);
  // So many tokens have been seen: of a new state, or of sequences that a cache holds more of.
  void set_positions(std::vector<int64_t> positions) { positions_ = std::move(positions); }

  // What came before the next tokens of so many sequences, but for the layers' own states. Throws
  // std::invalid_argument unless there are so many, or none yet.
  Past past(int64_t batch, const Device& device) const;
  // For who feeds the layers.
  AttentionState& layer(int64_t i) { return *layers_[static_cast<size_t>(i)]; }
  void advance(int64_t batch, int64_t tokens);

 private:
  struct Sequence {
    const DecodeState* state;
    int64_t index;
  };
  static DecodeState gather(const std::vector<Sequence>& sequences);
  void append_to(std::vector<Sequence>& sequences) const;

  std::vector<int64_t> positions_;
  std::vector<std::unique_ptr<AttentionState>> layers_;
};

}  // namespace dofla
