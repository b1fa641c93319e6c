#include "dofla/generate/generate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <utility>

#include "dofla/core/error.h"
#include "dofla/generate/decoder.h"
#include "dofla/model/finite.h"
#include "dofla/ops/sampling.h"

namespace dofla {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// The logits [1, V] that follow a prompt, whose memory `state` then is.
Tensor read_prompt(const Transformer& model, const TokenIds& prompt, DecodeState& state) {
  ForwardOptions options;
  options.state = &state;
  const Tensor hidden = model.forward(to_tensor(prompt), options);  // [1, T, C]
  const int64_t tokens = hidden.size(1);
  return model.logits(hidden.reshape({tokens, hidden.size(2)}).slice(tokens - 1, tokens));
}

void require_prompt(const Transformer& model, const TokenIds& prompt) {
  require(!prompt.empty(), "generate: the prompt is empty");
  if (std::ssize(prompt) > model.most_tokens())
    fail("the prompt has {} tokens, more than the model's context of {}: shorten it", prompt.size(),
         model.most_tokens());
}

// After a prompt and what was drawn.
[[noreturn]] void fail_without_next_token(const Transformer& model, TokenIds read,
                                          const TokenIds& drawn) {
  read.insert(read.end(), drawn.begin(), drawn.end());
  const auto context = static_cast<size_t>(model.config().context);
  if (read.size() > context) read.resize(context);
  fail_not_finite(model, to_tensor(read), "the next token's distribution");
}

}  // namespace

Generation generate(const Transformer& model, const TokenIds& prompt,
                    const GenerateOptions& options, const OnToken& on_token) {
  const ModelConfig& config = model.config();
  const auto prompt_tokens = static_cast<int64_t>(prompt.size());
  require_prompt(model, prompt);
  require(options.max_tokens > 0, "generate: max_tokens {}", options.max_tokens);
  const int64_t most = model.most_tokens();

  Generation result;
  Sampler sampler(options.sampler);
  DecodeState state = model.new_state();
  std::optional<Decoder> decoder;  // from the first token drawn on
  const Clock::time_point start = Clock::now();
  Clock::time_point first = start;
  Tensor following = read_prompt(model, prompt, state);
  while (true) {
    const Tensor logits = following.to(Device());
    if (!all_finite(logits)) fail_without_next_token(model, prompt, result.ids);
    const int64_t id = sampler.sample({logits.data<float>(), static_cast<size_t>(logits.count())});
    if (result.ids.empty()) first = Clock::now();
    result.ids.push_back(id);
    if (on_token) on_token(id);

    const bool end = options.stop_at_end_of_text && config.end_of_text == id;
    const auto drawn = static_cast<int64_t>(result.ids.size());
    if (end || drawn == options.max_tokens || prompt_tokens + drawn > most) {
      result.stopped = end                           ? StopReason::kEndOfText
                       : drawn == options.max_tokens ? StopReason::kMaxTokens
                                                     : StopReason::kContextFull;
      break;
    }
    if (!decoder) decoder.emplace(model, std::exchange(state, DecodeState({})));
    following = decoder->step({id});
  }
  result.prompt_seconds = seconds_between(start, first);
  const double decoding = seconds_between(first, Clock::now());
  if (result.ids.size() > 1)
    result.tokens_per_second = static_cast<double>(result.ids.size() - 1) / decoding;
  return result;
}

std::vector<TokenIds> generate_greedily(const Transformer& model,
                                        const std::vector<TokenIds>& prompts, int64_t tokens) {
  require(!prompts.empty(), "generate: no prompt");
  require(tokens > 0, "generate: {} tokens", tokens);
  std::vector<TokenIds> drawn(prompts.size());
  // The likeliest token of every row is what follows the prompts from `first` on.
  const auto draw = [&](const Tensor& following, size_t first) {
    const Tensor logits = following.to(Device());
    const auto vocabulary = static_cast<size_t>(logits.size(1));
    for (size_t i = 0; i < static_cast<size_t>(logits.size(0)); ++i) {
      const std::span row(logits.data<float>() + i * vocabulary, vocabulary);
      if (!std::ranges::all_of(row, [](float logit) { return std::isfinite(logit); }))
        fail_without_next_token(model, prompts[first + i], drawn[first + i]);
      drawn[first + i].push_back(static_cast<int64_t>(likeliest_token(row)));
    }
  };
  std::vector<DecodeState> read;
  for (size_t i = 0; i < prompts.size(); ++i) {
    require_prompt(model, prompts[i]);
    draw(read_prompt(model, prompts[i], read.emplace_back(model.new_state())), i);
  }
  if (tokens == 1) return drawn;
  std::vector<const DecodeState*> states;
  states.reserve(read.size());
  for (const DecodeState& state : read) states.push_back(&state);
  Decoder decoder(model, DecodeState::join(states), std::ssize(prompts));
  read.clear();
  while (std::ssize(drawn[0]) < tokens) {
    TokenIds last;
    for (const TokenIds& ids : drawn) last.push_back(ids.back());
    draw(decoder.step(last), 0);
  }
  return drawn;
}

}  // namespace dofla
