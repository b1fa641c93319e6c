#include "dofla/generate/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "dofla/core/error.h"
#include "dofla/core/fingerprint.h"
#include "dofla/distributed/agreement.h"
#include "dofla/model/finite.h"
#include "dofla/ops/embedding.h"
#include "dofla/ops/sampling.h"

namespace dofla {
namespace {

using Clock = std::chrono::steady_clock;

// Prompts that are continued side by side, and tokens of theirs, filled up to the longest of them.
// More does not make a GPU faster, and states and logits have to fit its memory.
constexpr size_t kSideBySide = 128;
constexpr size_t kTokensAtOnce = 16384;

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// The logits [1, V] that follow a prompt, whose memory `state` then is.
Tensor read_prompt(const Transformer& model, const TokenIds& prompt, DecodeState& state) {
  const int64_t length = std::ssize(prompt);
  const int64_t chunk = model.device().is_cuda() ? length : kPromptChunk;
  Tensor hidden;  // [1, T, C]
  for (int64_t begin = 0; begin < length; begin += chunk)
    hidden = model.forward(
        to_tensor({prompt.begin() + begin, prompt.begin() + std::min(begin + chunk, length)}),
        {.state = &state, .observer = {}});
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

// Prompts, the short ones first, that are continued side by side.
class GreedyBatch {
 public:
  GreedyBatch(const Transformer& model, const std::vector<TokenIds>& prompts,
              std::vector<size_t> which)
      : model_(model), prompts_(prompts), which_(std::move(which)) {}

  void generate(int64_t tokens, std::vector<TokenIds>& drawn) const {
    std::vector<DecodeState> read;
    for (size_t begin = 0, end = 0; begin < which_.size(); begin = end) {
      while (end < which_.size() && prompt(end).size() == prompt(begin).size()) ++end;
      draw(read_prompts(begin, end, read.emplace_back(model_.new_state())), begin, drawn);
    }
    if (tokens == 1) return;
    std::vector<const DecodeState*> states;
    states.reserve(read.size());
    for (const DecodeState& state : read) states.push_back(&state);
    Decoder decoder(model_, DecodeState::join(states), std::ssize(which_));
    read.clear();
    for (int64_t i = 1; i < tokens; ++i) {
      TokenIds last;
      last.reserve(which_.size());
      for (const size_t one : which_) last.push_back(drawn[one].back());
      draw(decoder.step(last), 0, drawn);
    }
  }

 private:
  const TokenIds& prompt(size_t i) const { return prompts_[which_[i]]; }

  // Those from `begin` to `end`, which are of one length, at once: the logits that follow each.
  Tensor read_prompts(size_t begin, size_t end, DecodeState& state) const {
    const auto count = static_cast<int64_t>(end - begin), length = std::ssize(prompt(begin));
    Tensor ids({count, length}, DType::kI64), last({count}, DType::kI64);
    for (int64_t i = 0; i < count; ++i) {
      std::ranges::copy(prompt(begin + static_cast<size_t>(i)), ids.data<int64_t>() + i * length);
      last.data<int64_t>()[i] = (i + 1) * length - 1;
    }
    const Tensor hidden = model_.forward(ids, {.state = &state, .observer = {}});
    return model_.logits(embed(hidden.reshape({count * length, hidden.size(2)}), last));
  }

  // The likeliest token of every row is what follows the prompts from `first` on.
  void draw(const Tensor& following, size_t first, std::vector<TokenIds>& drawn) const {
    const Tensor logits = following.to(Device());
    for (int64_t i = 0; i < logits.size(0); ++i) {
      const size_t which = which_[first + static_cast<size_t>(i)];
      if (!all_finite(logits.slice(i, i + 1)))
        fail_without_next_token(model_, prompts_[which], drawn[which]);
      const float* row = logits.data<float>() + i * logits.size(1);
      const size_t token = likeliest_token({row, static_cast<size_t>(logits.size(1))});
      drawn[which].push_back(static_cast<int64_t>(token));
    }
  }

  const Transformer& model_;
  const std::vector<TokenIds>& prompts_;
  std::vector<size_t> which_;
};

void require_same_prompts(const Group& group, const std::vector<TokenIds>& prompts) {
  if (group.alone()) return;
  Fingerprint all;
  for (const TokenIds& prompt : prompts) all.add(std::as_bytes(std::span(prompt)));
  require_same(group, "prompts", all.text());
}

}  // namespace

Generator::Generator(const Transformer& model, TokenIds prompt, const GenerateOptions& options)
    : model_(model),
      prompt_(std::move(prompt)),
      options_(options),
      sampler_(options.sampler),
      state_(model.new_state()) {
  require_prompt(model, prompt_);
  require(options.max_tokens > 0, "generate: max_tokens {}", options.max_tokens);
}

Tensor Generator::next_logits() {
  if (result_.ids.empty()) return read_prompt(model_, prompt_, state_);
  if (!decoder_) decoder_.emplace(model_, std::exchange(state_, DecodeState({})));
  return decoder_->step({result_.ids.back()});
}

std::optional<int64_t> Generator::next() {
  if (done_) return std::nullopt;
  const Clock::time_point start = Clock::now();
  done_ = true;  // unless it ends well: what failed half-way cannot go on
  const Tensor logits = next_logits().to(Device());
  if (!all_finite(logits)) fail_without_next_token(model_, prompt_, result_.ids);
  const int64_t id = sampler_.sample({logits.data<float>(), static_cast<size_t>(logits.count())});
  const Clock::time_point now = Clock::now();
  if (result_.ids.empty()) {
    result_.prompt_seconds = seconds_between(start, now);
    first_ = now;
  } else {
    result_.tokens_per_second =
        static_cast<double>(result_.ids.size()) / seconds_between(first_, now);
  }
  result_.ids.push_back(id);
  const bool end = options_.stop_at_end_of_text && model_.config().end_of_text == id;
  const auto drawn = std::ssize(result_.ids);
  done_ = end || drawn == options_.max_tokens || std::ssize(prompt_) + drawn > model_.most_tokens();
  result_.stopped = end                            ? StopReason::kEndOfText
                    : drawn == options_.max_tokens ? StopReason::kMaxTokens
                                                   : StopReason::kContextFull;
  return id;
}

Generation generate(const Transformer& model, const TokenIds& prompt,
                    const GenerateOptions& options, const OnToken& on_token) {
  Generator generator(model, prompt, options);
  while (const std::optional<int64_t> id = generator.next())
    if (on_token) on_token(*id);
  return generator.result();
}

std::vector<TokenIds> generate_greedily(const Transformer& model,
                                        const std::vector<TokenIds>& prompts, int64_t tokens,
                                        const Progress& progress, const Group& group) {
  require(!prompts.empty(), "generate: no prompt");
  require(tokens > 0, "generate: {} tokens", tokens);
  for (const TokenIds& prompt : prompts) require_prompt(model, prompt);
  require_same_prompts(group, prompts);
  const Share own = group.share(std::ssize(prompts));
  const Progress pace = at_own_pace(group, progress);
  std::vector<size_t> order(static_cast<size_t>(own.count()));  // short ones first
  std::iota(order.begin(), order.end(), static_cast<size_t>(own.begin));
  std::ranges::stable_sort(order, {}, [&](size_t i) { return prompts[i].size(); });
  std::vector<TokenIds> drawn(prompts.size());
  together<NotFinite>(group, [&] {
    for (size_t begin = 0, end = 0; begin < order.size(); begin = end) {
      for (end = begin + 1; end < order.size(); ++end)
        if (end - begin == kSideBySide ||
            (end + 1 - begin) * prompts[order[end]].size() > kTokensAtOnce)
          break;
      GreedyBatch batch(
          model, prompts,
          {order.begin() + static_cast<int64_t>(begin), order.begin() + static_cast<int64_t>(end)});
      batch.generate(tokens, drawn);
      report(pace, {"generate", static_cast<int64_t>(end), std::ssize(prompts), "prompts"});
    }
  });
  gather_rows(group, drawn);
  return drawn;
}

}  // namespace dofla
