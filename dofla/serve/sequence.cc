#include "dofla/serve/sequence.h"

#include <algorithm>

#include "dofla/core/error.h"
#include "dofla/serve/token_scores.h"

namespace dofla {
namespace {

// Logits of so many tokens of a prompt exist at a time.
constexpr int64_t kScoredRows = 64;

std::span<const float> row_of(const Tensor& logits, int64_t row) {
  return {logits.data<float>() + row * logits.size(1), static_cast<size_t>(logits.size(1))};
}

void check(const Transformer& model, const GenerationRequest& request) {
  require(!request.prompt.empty(), "the prompt is empty: give at least one token");
  const int64_t vocabulary = model.config().vocabulary, most = model.most_tokens();
  for (const int64_t id : request.prompt)
    require(id >= 0 && id < vocabulary, "token id {} is outside the vocabulary of {}", id,
            vocabulary);
  require(std::ssize(request.prompt) <= most,
          "the prompt has {} tokens, more than the model's context of {}: shorten it",
          request.prompt.size(), most);
  require(request.max_tokens >= 0, "max_tokens {}: expected 0 or more", request.max_tokens);
  require(!request.top_logprobs ||
              (*request.top_logprobs >= 0 && *request.top_logprobs <= kMostTopLogprobs),
          "top_logprobs {}: expected 0 to {}", request.top_logprobs.value_or(0), kMostTopLogprobs);
}

}  // namespace

Sequence::Sequence(const Transformer& model, GenerationRequest request)
    : model_(model),
      request_(std::move(request)),
      sampler_(request_.sampler),
      tokens_(request_.prompt),
      state_(model.new_state()) {
  check(model, request_);
  usage_.prompt_tokens = std::ssize(request_.prompt);
}

int64_t Sequence::read(int64_t chunk) {
  const int64_t end = std::min((read_ / chunk + 1) * chunk, std::ssize(tokens_));
  const TokenIds part(tokens_.begin() + read_, tokens_.begin() + end);
  const Tensor all = model_.forward(to_tensor(part), {.state = &state_, .observer = {}});
  const int64_t count = end - read_;
  const Tensor hidden = all.reshape({count, all.size(2)});
  if (request_.score_prompt) score(hidden, read_);
  hidden_ = hidden.slice(count - 1, count).clone();
  read_ = end;
  return count;
}

// Row i of `hidden` tells the probability of token first + i + 1.
void Sequence::score(const Tensor& hidden, int64_t first) {
  if (scored_.empty()) scored_.push_back({.id = tokens_.front(), .logprob = {}, .top = {}});
  const int64_t rows = std::min(hidden.size(0), std::ssize(tokens_) - first - 1);
  for (int64_t begin = 0; begin < rows; begin += kScoredRows) {
    const int64_t end = std::min(begin + kScoredRows, rows);
    const Tensor logits = model_.logits(hidden.slice(begin, end)).to(Device());
    for (int64_t row = begin; row < end; ++row)
      scored_.push_back(score_token(tokens_[static_cast<size_t>(first + row + 1)],
                                    row_of(logits, row - begin),
                                    request_.top_logprobs.value_or(0)));
  }
}

std::optional<EndReason> Sequence::end_prompt() {
  if (request_.score_prompt && request_.on_prompt) request_.on_prompt(std::move(scored_));
  drawing_ = true;
  if (request_.max_tokens == 0) {
    usage_.prompt_seconds = since_.seconds();
    return EndReason::kMaxTokens;
  }
  return draw(row_of(model_.logits(hidden_).to(Device()), 0));
}

std::optional<EndReason> Sequence::draw(std::span<const float> logits) {
  const int64_t id = sampler_.sample(logits);
  const ServedToken token = request_.top_logprobs ? score_token(id, logits, *request_.top_logprobs)
                                                  : ServedToken{.id = id, .logprob = {}, .top = {}};
  tokens_.push_back(id);
  const double now = since_.seconds();
  if (++usage_.completion_tokens == 1) usage_.prompt_seconds = now;
  usage_.decode_seconds = now - usage_.prompt_seconds;
  const bool go_on = !request_.on_token || request_.on_token(token);
  if (request_.stop_at_end_of_text && model_.config().end_of_text == id)
    return EndReason::kEndOfText;
  if (!go_on) return EndReason::kStopped;
  if (usage_.completion_tokens == request_.max_tokens) return EndReason::kMaxTokens;
  if (std::ssize(tokens_) > model_.most_tokens()) return EndReason::kContextFull;
  return std::nullopt;
}

void Sequence::end(EndReason reason) {
  if (request_.on_end) request_.on_end(reason, usage_);
}

void Sequence::fail(std::exception_ptr error) {
  if (request_.on_error) request_.on_error(std::move(error));
}

}  // namespace dofla
