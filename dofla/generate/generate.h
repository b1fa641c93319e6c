// Continues sequences token by token.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "dofla/core/progress.h"
#include "dofla/data/batches.h"
#include "dofla/generate/sampler.h"
#include "dofla/model/transformer.h"

namespace dofla {

struct GenerateOptions {
  int64_t max_tokens = 128;
  bool stop_at_end_of_text = true;
  SamplerOptions sampler;
};

enum class StopReason { kMaxTokens, kEndOfText, kContextFull };

struct Generation {
  TokenIds ids;  // the continuation only; ends with the end-of-text token if that stopped it
  StopReason stopped = StopReason::kMaxTokens;
  double prompt_seconds = 0;     // from the start to the first token
  double tokens_per_second = 0;  // of the tokens after the first; 0 if there are none
};

// On a CPU a prompt is read so many tokens at a time: no slower than at once, in less memory, and
// with the bits that whoever reads it in several goes gets, too (docs/serve.md).
constexpr int64_t kPromptChunk = 256;

// Called with each token as soon as it is drawn.
using OnToken = std::function<void(int64_t id)>;

// Throws Error if the prompt has more tokens than the model can take (Transformer::most_tokens),
// std::invalid_argument if it is empty or holds ids outside the vocabulary. A prompt of n tokens
// can be continued by up to most_tokens − n + 1 of them: the last one drawn need not be read again.
Generation generate(const Transformer& model, const TokenIds& prompt,
                    const GenerateOptions& options, const OnToken& on_token = {});

// The `tokens` likeliest next tokens of every prompt, past the end of text too: what generate()
// draws at temperature 0. Prompts may have different lengths, and `tokens` must fit after each.
// Many are continued side by side, and those of one length are read together.
std::vector<TokenIds> generate_greedily(const Transformer& model,
                                        const std::vector<TokenIds>& prompts, int64_t tokens,
                                        const Progress& progress = {});

}  // namespace dofla
