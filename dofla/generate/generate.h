// Continues sequences token by token.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "dofla/core/names.h"
#include "dofla/core/progress.h"
#include "dofla/data/batches.h"
#include "dofla/distributed/group.h"
#include "dofla/generate/decoder.h"
#include "dofla/generate/sampler.h"
#include "dofla/model/transformer.h"

namespace dofla {

struct GenerateOptions {
  int64_t max_tokens = 128;
  bool stop_at_end_of_text = true;
  SamplerOptions sampler;
};

enum class StopReason { kMaxTokens, kEndOfText, kContextFull };
template <>
struct Names<StopReason> {
  static constexpr std::string_view kWhat = "reason to stop";
  static constexpr std::array kAll = {Name{StopReason::kMaxTokens, "max-tokens"},
                                      Name{StopReason::kEndOfText, "end-of-text"},
                                      Name{StopReason::kContextFull, "context-full"}};
};

struct Generation {
  TokenIds ids;  // the continuation only; ends with the end-of-text token if that stopped it
  StopReason stopped = StopReason::kMaxTokens;
  double prompt_seconds = 0;     // from the start to the first token
  double tokens_per_second = 0;  // of the tokens after the first; 0 if there are none
};

// On a CPU a prompt is read so many tokens at a time: no slower than at once, in less memory, and
// with the bits that whoever reads it in several goes gets, too (docs/serve.md).
constexpr int64_t kPromptChunk = 256;

// Draws a continuation token by token. The model must outlive it.
class Generator {
 public:
  // Throws Error if the prompt has more tokens than the model can take (Transformer::most_tokens),
  // std::invalid_argument if it is empty. A prompt of n tokens can be continued by up to
  // most_tokens − n + 1 of them: the last one drawn need not be read again.
  Generator(const Transformer& model, TokenIds prompt, const GenerateOptions& options);

  // The next token; nothing after the last one. The first call reads the prompt; it throws
  // std::invalid_argument if that holds ids outside the vocabulary.
  std::optional<int64_t> next();

  bool done() const { return done_; }
  const TokenIds& prompt() const { return prompt_; }
  const Generation& result() const { return result_; }  // so far; `stopped` counts once it is done

 private:
  using Clock = std::chrono::steady_clock;

  Tensor next_logits();  // [1, V], on the model's device

  const Transformer& model_;
  TokenIds prompt_;
  GenerateOptions options_;
  Sampler sampler_;
  std::optional<Decoder> decoder_;  // from the first token drawn on
  DecodeState state_;               // until then
  Clock::time_point first_;         // when the first token was there
  bool done_ = false;
  Generation result_;
};

// Called with each token as soon as it is drawn.
using OnToken = std::function<void(int64_t id)>;

// All of a Generator's tokens.
Generation generate(const Transformer& model, const TokenIds& prompt,
                    const GenerateOptions& options, const OnToken& on_token = {});

// The `tokens` likeliest next tokens of every prompt, past the end of text too: what generate()
// draws at temperature 0. Prompts may have different lengths, and `tokens` must fit after each.
// Many are continued side by side, and those of one length are read together. Ranks share the
// prompts, and all have the result.
std::vector<TokenIds> generate_greedily(const Transformer& model,
                                        const std::vector<TokenIds>& prompts, int64_t tokens,
                                        const Progress& progress = {}, const Group& group = {});

}  // namespace dofla
