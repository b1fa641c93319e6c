#include "dofla/serve/sequence.h"

#include <algorithm>

#include "dofla/core/error.h"
#include "dofla/core/parallel.h"
#include "dofla/serve/token_scores.h"

namespace dofla {
namespace {

// Logits of so many tokens of a prompt exist at a time.
constexpr int64_t kScoredRows = 64;

void check(const Transformer& model, const GenerationRequest& request, int64_t before) {
  require(!request.prompt.empty() || before > 0, "the prompt is empty: give at least one token");
  const int64_t vocabulary = model.config().vocabulary, most = model.most_tokens();
  for (const int64_t id : request.prompt)
    require(id >= 0 && id < vocabulary, "token id {} is outside the vocabulary of {}", id,
            vocabulary);
  const int64_t tokens = before + std::ssize(request.prompt);
  require(tokens <= most,
          "the prompt has {} tokens, more than the model's context of {}: shorten it", tokens,
          most);
  require(request.max_tokens >= 0, "max_tokens {}: expected 0 or more", request.max_tokens);
  const int64_t top = request.top_logprobs.value_or(0);
  require(top >= 0 && top <= kMostTopLogprobs, "top_logprobs {}: expected 0 to {}", top,
          kMostTopLogprobs);
}

}  // namespace

Sequence::Sequence(const Transformer& model, GenerationRequest request,
                   std::shared_ptr<const Snapshot> from)
    : model_(model),
      request_(std::move(request)),
      from_(std::move(from)),
      sampler_(request_.sampler),
      state_(model.new_state()) {
  if (from_) tokens_ = from_->tokens;
  prompt_begin_ = std::ssize(tokens_);
  check(model, request_, prompt_begin_);
  tokens_.insert(tokens_.end(), request_.prompt.begin(), request_.prompt.end());
  usage_.prompt_tokens = std::ssize(request_.prompt);
}

int64_t Sequence::exact_tokens() const {
  return exact_ ? prompt_begin_ + usage_.prompt_tokens : 0;
}

void Sequence::begin(PrefixCache& cache) {
  begun_ = true;
  const auto take_up = [&](const Snapshot& snapshot, int64_t tokens) {
    const Device& device = model_.device();
    const DType type = device.is_cuda() ? model_.weights().token_embedding.dtype() : DType::kF32;
    const DecodeState there =
        snapshot.state.transform([&](const Tensor& tensor) { return tensor.to(device); });
    state_ = copy_of(model_, there, 0, tokens);
    read_ = tokens;
    const bool whole = tokens == snapshot.read() && snapshot.hidden.defined();
    if (whole) hidden_ = snapshot.hidden.to(type).to(device);
  };
  if (from_) {
    take_up(*from_, from_->read());
    from_.reset();
    exact_ = false;
    if (request_.score_prompt && hidden_.defined()) score(hidden_, read_ - 1);
  } else if (request_.score_prompt) {
    scored_.push_back({.id = tokens_.front(), .logprob = {}, .top = {}});
  } else if (const auto found = cache.find(tokens_)) {
    take_up(*found->snapshot, found->tokens);
    exact_ = found->exact;
    usage_.cached_tokens = found->tokens;
  }
}

int64_t Sequence::read(int64_t chunk, PrefixCache& cache) {
  const int64_t length = std::ssize(tokens_), begin = read_;
  read_ = std::min((begin / chunk + 1) * chunk, length);
  const int64_t count = read_ - begin;
  const TokenIds part(tokens_.begin() + begin, tokens_.begin() + read_);
  const Tensor all = model_.forward(to_tensor(part), {.state = &state_, .observer = {}});
  const Tensor hidden = all.reshape({count, all.size(2)});
  hidden_ = hidden.slice(count - 1, count).clone();
  if (request_.score_prompt) score(hidden, begin);
  keep_prompt(cache);
  return count;
}

void Sequence::keep_prompt(PrefixCache& cache) const {
  if (exact_ && cache.wants_prompt(read_, std::ssize(tokens_)))
    cache.keep_prompt({.tokens = {tokens_.begin(), tokens_.begin() + read_},
                       .state = copy_of(model_, state_, 0, read_),
                       .hidden = hidden_});
}

void Sequence::read_together(const std::vector<Sequence*>& sequences, PrefixCache& cache) {
  const Transformer& model = sequences.front()->model_;
  const int64_t count = std::ssize(sequences), length = std::ssize(sequences.front()->tokens_);
  Tensor ids({count, length}, DType::kI64);
  for (int64_t i = 0; i < count; ++i)
    std::ranges::copy(sequences[static_cast<size_t>(i)]->tokens_, ids.data<int64_t>() + i * length);
  DecodeState state = model.new_state();
  const Tensor all = model.forward(ids, {.state = &state, .observer = {}});
  const Tensor hidden = all.reshape({count * length, all.size(2)});
  for (int64_t i = 0; i < count; ++i) {
    Sequence& own = *sequences[static_cast<size_t>(i)];
    own.state_ = copy_of(model, state, i, length);
    own.hidden_ = hidden.slice((i + 1) * length - 1, (i + 1) * length).clone();
    own.begun_ = true;
    own.read_ = length;
    own.keep_prompt(cache);
  }
}

// Row i of `hidden` tells the probability of token first + i + 1.
void Sequence::score(const Tensor& hidden, int64_t first) {
  const int64_t last = std::ssize(tokens_) - 1;  // there is no token after this one yet
  for (int64_t begin = std::max(first, prompt_begin_ - 1);
       begin < std::min(first + hidden.size(0), last); begin += kScoredRows) {
    const int64_t end = std::min({begin + kScoredRows, first + hidden.size(0), last});
    const Tensor logits = model_.logits(hidden.slice(begin - first, end - first)).to(Device());
    const auto vocabulary = static_cast<size_t>(logits.size(1));
    const size_t before = scored_.size();
    scored_.resize(before + static_cast<size_t>(end - begin));
    parallel_for(end - begin, [&](int64_t row) {
      const float* at = logits.data<float>() + row * logits.size(1);
      scored_[before + static_cast<size_t>(row)] =
          score_token(tokens_[static_cast<size_t>(begin + row + 1)], {at, vocabulary},
                      request_.top_logprobs.value_or(0));
    });
  }
}

Tensor Sequence::first_logits() const {
  require(hidden_.defined(), "a sequence without a token to go on from");
  return model_.logits(hidden_);
}

void Sequence::tell_prompt() {
  usage_.prompt_seconds = since_.seconds();
  if (request_.score_prompt && request_.on_prompt) request_.on_prompt(std::move(scored_));
}

void Sequence::draw(std::span<const float> logits) noexcept {
  try {
    const int64_t id = sampler_.sample(logits);
    drawn_ = request_.top_logprobs ? score_token(id, logits, *request_.top_logprobs)
                                   : ServedToken{.id = id, .logprob = {}, .top = {}};
  } catch (...) {
    broken_ = std::current_exception();
  }
}

void Sequence::take(int64_t id, const Tensor& logits, int64_t row) noexcept {
  try {
    drawn_ = {.id = id, .logprob = {}, .top = {}};
    if (id >= 0 && !request_.top_logprobs) return;
    const Tensor here = logits.slice(row, row + 1).to(Device());
    const std::span<const float> own(here.data<float>(), static_cast<size_t>(here.count()));
    likeliest_token(own);  // throws where no token can be drawn
    drawn_ = score_token(id, own, request_.top_logprobs.value_or(0));
  } catch (...) {
    broken_ = std::current_exception();
  }
}

std::optional<EndReason> Sequence::tell() {
  if (broken_) std::rethrow_exception(broken_);
  tokens_.push_back(drawn_.id);
  ++read_;  // what is drawn is read by the next step, if there is one
  const double now = since_.seconds();
  if (++usage_.completion_tokens == 1) usage_.prompt_seconds = now;
  usage_.decode_seconds = now - usage_.prompt_seconds;
  const bool go_on = !request_.on_token || request_.on_token(drawn_);
  if (request_.stop_at_end_of_text && model_.config().end_of_text == drawn_.id)
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
