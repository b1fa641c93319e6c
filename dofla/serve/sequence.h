// One request on its way through the engine: its text so far, what of it the model has read, and
// what the caller has been told.
#pragma once

#include <optional>
#include <span>

#include "dofla/core/stopwatch.h"
#include "dofla/model/transformer.h"
#include "dofla/serve/request.h"

namespace dofla {

class Sequence {
 public:
  // Throws std::invalid_argument on a request that cannot be met.
  Sequence(const Transformer& model, GenerationRequest request);

  uint64_t id() const { return id_; }
  void set_id(uint64_t id) { id_ = id; }
  const GenerationRequest& request() const { return request_; }
  int64_t last() const { return tokens_.back(); }
  bool reading() const { return read_ < std::ssize(tokens_) && !drawing_; }

  // Reads on to the next multiple of `chunk`, or to the end of the prompt. Returns the tokens read.
  int64_t read(int64_t chunk);
  DecodeState release() { return std::move(state_); }

  // After the prompt: tells its scores, and the first token. Empty: it goes on.
  std::optional<EndReason> end_prompt();
  // Draws the next token and tells it. Throws Error where no token can be drawn.
  std::optional<EndReason> draw(std::span<const float> logits);

  void end(EndReason reason);
  void fail(std::exception_ptr error);

  const Usage& usage() const { return usage_; }

 private:
  void score(const Tensor& hidden, int64_t first);

  const Transformer& model_;
  uint64_t id_ = 0;
  GenerationRequest request_;
  Sampler sampler_;
  TokenIds tokens_;  // prompt, then what was drawn
  int64_t read_ = 0;
  bool drawing_ = false;
  DecodeState state_;
  Tensor hidden_;  // [1, C], of the last token read
  std::vector<ServedToken> scored_;
  Stopwatch since_;
  Usage usage_;
};

}  // namespace dofla
