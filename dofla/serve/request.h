// What is asked of an engine, and what it answers with.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dofla/data/batches.h"
#include "dofla/generate/sampler.h"

namespace dofla {

struct TokenProbability {
  int64_t id = 0;
  float logprob = 0;  // natural logarithm, of the softmax of the model's raw logits
};

struct ServedToken {
  int64_t id = 0;
  std::optional<float> logprob;       // where asked for; the first token of a text has none
  std::vector<TokenProbability> top;  // the likeliest, most first, ties by lower id
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt, which were not read again
  double prompt_seconds = 0;  // from the submission to the first token
  double decode_seconds = 0;  // from the first token to the last
};

enum class EndReason {
  kMaxTokens,
  kEndOfText,
  kContextFull,
  kStopped,    // on_token said so
  kCancelled,  // by Engine::cancel
  kShutdown    // the engine went away
};

struct GenerationRequest {
  TokenIds prompt;          // at least one token, unless it goes on from a state
  int64_t max_tokens = 16;  // 0: the prompt is read (and scored), no more
  bool stop_at_end_of_text = true;
  SamplerOptions sampler;               // as for generate(): the same seed gives the same tokens
  std::optional<int64_t> top_logprobs;  // 0 to kMostTopLogprobs; empty: no log-probabilities
  bool score_prompt = false;            // on_prompt receives the prompt's tokens with theirs
  std::string from_state, keep_state;   // names in the engine's StateStore; empty: none

  // All are called on the engine's thread: they must be quick and must not throw. on_end or
  // on_error is called exactly once, and nothing after it.
  std::function<void(std::vector<ServedToken>)> on_prompt = {};  // once, if score_prompt
  std::function<bool(const ServedToken&)> on_token = {};         // false: end here
  std::function<void(EndReason, const Usage&)> on_end = {};
  std::function<void(std::exception_ptr)> on_error = {};
};

constexpr int64_t kMostTopLogprobs = 20;

}  // namespace dofla
