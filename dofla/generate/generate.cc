#include "dofla/generate/generate.h"

#include <chrono>
#include <optional>
#include <utility>

#include "dofla/core/error.h"
#include "dofla/generate/decoder.h"
#include "dofla/model/finite.h"

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

}  // namespace

Generation generate(const Transformer& model, const TokenIds& prompt,
                    const GenerateOptions& options, const OnToken& on_token) {
  const ModelConfig& config = model.config();
  const auto prompt_tokens = static_cast<int64_t>(prompt.size());
  require(prompt_tokens > 0, "generate: the prompt is empty");
  require(options.max_tokens > 0, "generate: max_tokens {}", options.max_tokens);
  const int64_t most = model.most_tokens();
  if (prompt_tokens > most)
    fail("the prompt has {} tokens, more than the model's context of {}: shorten it", prompt_tokens,
         most);

  Generation result;
  Sampler sampler(options.sampler);
  DecodeState state = model.new_state();
  std::optional<Decoder> decoder;  // from the first token drawn on
  const Clock::time_point start = Clock::now();
  Clock::time_point first = start;
  Tensor following = read_prompt(model, prompt, state);
  while (true) {
    const Tensor logits = following.to(Device());
    if (!all_finite(logits)) {
      TokenIds read = prompt;
      read.insert(read.end(), result.ids.begin(), result.ids.end());
      if (read.size() > static_cast<size_t>(config.context))
        read.resize(static_cast<size_t>(config.context));
      fail_not_finite(model, to_tensor(read), "the next token's distribution");
    }
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

}  // namespace dofla
