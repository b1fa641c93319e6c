// One request on its way through the engine: its text so far, what of it the model has read, and
// what the caller has been told.
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "dofla/core/stopwatch.h"
#include "dofla/serve/prefix_cache.h"
#include "dofla/serve/request.h"

namespace dofla {

class Sequence {
 public:
  // Goes on from a state, or from nothing where it is null. Throws std::invalid_argument on a
  // request that cannot be met.
  Sequence(const Transformer& model, GenerationRequest request,
           std::shared_ptr<const Snapshot> from);

  uint64_t id() const { return id_; }
  void set_id(uint64_t id) { id_ = id; }
  const GenerationRequest& request() const { return request_; }
  const Usage& usage() const { return usage_; }
  const TokenIds& tokens() const { return tokens_; }  // of the state, of the prompt, and drawn
  int64_t exact_tokens() const;  // that were read from the beginning, a chunk at a time

  // Takes up what the model remembers already. Once, before reading.
  void begin(PrefixCache& cache);
  bool begun() const { return begun_; }
  // Whether it can be read together with others.
  bool whole() const { return !begun_ && !from_ && !request_.score_prompt; }
  bool reading() const { return read_ < std::ssize(tokens_); }  // of the prompt
  // Reads on to the next multiple of `chunk` tokens, or to the end. Returns the tokens read.
  int64_t read(int64_t chunk, PrefixCache& cache);
  // Reads prompts of one length, of none of which anything was read or is to be scored, at once. On
  // a GPU that takes little longer than one of them; on a CPU the bits would depend on the company.
  static void read_together(const std::vector<Sequence*>& sequences, PrefixCache& cache);
  // After reading: the logits of the first token, on the model's device.
  Tensor first_logits() const;  // [1, V]
  // The state, as long as the sequence is in no batch, and the hidden state that came with it.
  const DecodeState& state() const { return state_; }
  const Tensor& hidden() const { return hidden_; }
  void forget_state() { state_ = DecodeState({}), hidden_ = Tensor(); }

  void tell_prompt();
  // Draws the next token. Different sequences may do so at the same time.
  void draw(std::span<const float> logits) noexcept;
  // For a draw on a GPU: how, and its result with the logits of all, of which the own row is looked
  // at only where it is to be told or shows what is broken.
  TokenDraw next_draw() { return sampler_.next_draw(); }
  void take(int64_t id, const Tensor& logits, int64_t row) noexcept;  // [B, V], on any device
  // Tells it. Empty: it goes on. Throws Error where no token could be drawn.
  std::optional<EndReason> tell();
  // The end; nothing is told after it.
  void end(EndReason reason);
  void fail(std::exception_ptr error);

 private:
  void keep_prompt(PrefixCache& cache) const;
  void score(const Tensor& hidden, int64_t first);

  const Transformer& model_;
  uint64_t id_ = 0;
  GenerationRequest request_;
  std::shared_ptr<const Snapshot> from_;
  Sampler sampler_;
  TokenIds tokens_;
  int64_t prompt_begin_ = 0, read_ = 0;
  bool begun_ = false;
  bool exact_ = true;  // what was read has the bits that reading from the beginning gives
  DecodeState state_;
  Tensor hidden_;  // [1, C], of the last token read
  std::vector<ServedToken> scored_;
  ServedToken drawn_;
  std::exception_ptr broken_;  // instead of a token
  Stopwatch since_;
  Usage usage_;
};

}  // namespace dofla
