// The sequences that decode together. They come and go between steps.
#pragma once

#include <optional>
#include <vector>

#include "dofla/generate/decoder.h"

namespace dofla {

class Batch {
 public:
  explicit Batch(const Transformer& model) : model_(model) {}

  int64_t size() const { return size_; }
  int64_t bytes() const;

  // Sequence size() from now on.
  void join(DecodeState one);
  // The others stay in their order.
  void leave(int64_t index);
  void clear();
  DecodeState copy(int64_t index);

  // Reads one token of every sequence: the logits of what follows, on the model's device until the
  // next step.
  Tensor step(const std::vector<int64_t>& ids);  // B -> [B, V], F32

 private:
  void rebuild();

  const Transformer& model_;
  int64_t size_ = 0;
  std::optional<Decoder> decoder_;
  std::vector<int64_t> kept_;         // of the decoder's sequences
  std::vector<DecodeState> joining_;  // after those
};

}  // namespace dofla
