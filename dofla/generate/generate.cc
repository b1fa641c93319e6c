#include "dofla/generate/generate.h"

#include <chrono>
#include <optional>

#include "dofla/core/error.h"
#include "dofla/linear/decoder.h"

namespace dofla {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// Reads the prompt, then token after token.
class Reader {
 public:
  explicit Reader(const Transformer& model) : model_(model), state_(model.new_state()) {}

  int64_t position() const { return (decoder_ ? decoder_->state() : state_).position(); }

  // The logits [V] that follow the last of `ids`.
  Tensor next_logits(const TokenIds& ids) {
    const bool token = ids.size() == 1 && position() > 0;
    if (!decoder_ && token && model_.device().is_cuda() && Decoder::takes(model_))
      decoder_.emplace(model_, std::move(state_));
    const Tensor logits = decoder_ ? decoder_->step(ids) : forward(ids);
    return logits.reshape({logits.size(1)}).to(Device());
  }

 private:
  Tensor forward(const TokenIds& ids) {
    ForwardOptions options;
    options.state = &state_;
    const Tensor hidden = model_.forward(to_tensor(ids), options);  // [1, T, C]
    const int64_t tokens = hidden.size(1);
    const Tensor rows = hidden.reshape({tokens, hidden.size(2)});
    return model_.logits(rows.slice(tokens - 1, tokens));
  }

  const Transformer& model_;
  DecodeState state_;
  std::optional<Decoder> decoder_;  // for linear models on a GPU, from the first token drawn on
};

}  // namespace

Generation generate(const Transformer& model, const TokenIds& prompt,
                    const GenerateOptions& options, const OnToken& on_token) {
  const ModelConfig& config = model.config();
  const auto prompt_tokens = static_cast<int64_t>(prompt.size());
  require(prompt_tokens > 0, "generate: the prompt is empty");
  require(options.max_tokens > 0, "generate: max_tokens {}", options.max_tokens);
  if (prompt_tokens > config.context)
    fail("the prompt has {} tokens, more than the model's context of {}: shorten it", prompt_tokens,
         config.context);

  Generation result;
  Sampler sampler(options.sampler);
  Reader reader(model);
  TokenIds unread = prompt;
  const Clock::time_point start = Clock::now();
  Clock::time_point first = start;
  while (true) {
    const Tensor logits = reader.next_logits(unread);
    const int64_t id = sampler.sample({logits.data<float>(), static_cast<size_t>(logits.count())});
    if (result.ids.empty()) first = Clock::now();
    result.ids.push_back(id);
    if (on_token) on_token(id);
    unread = {id};

    if (options.stop_at_end_of_text && config.end_of_text == id)
      result.stopped = StopReason::kEndOfText;
    else if (static_cast<int64_t>(result.ids.size()) == options.max_tokens)
      result.stopped = StopReason::kMaxTokens;
    else if (reader.position() == config.context)
      result.stopped = StopReason::kContextFull;
    else
      continue;
    break;
  }
  result.prompt_seconds = seconds_between(start, first);
  const double decoding = seconds_between(first, Clock::now());
  if (result.ids.size() > 1)
    result.tokens_per_second = static_cast<double>(result.ids.size() - 1) / decoding;
  return result;
}

}  // namespace dofla
