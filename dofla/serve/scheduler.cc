#include "dofla/serve/scheduler.h"

#include <algorithm>

#include "dofla/core/parallel.h"
#include "dofla/core/stopwatch.h"
#include "dofla/serve/state_store.h"

namespace dofla {
namespace {

std::span<const float> row_of(const Tensor& logits, size_t row) {
  const auto vocabulary = static_cast<size_t>(logits.size(1));
  return {logits.data<float>() + row * vocabulary, vocabulary};
}

}  // namespace

Scheduler::Scheduler(const Transformer& model, const EngineOptions& options)
    : model_(model),
      options_(options),
      batch_(model, options.parallel),
      cache_(model, options.cache_memory, options.prompt_chunk) {}

EngineMetrics Scheduler::metrics() const {
  EngineMetrics now = metrics_;
  now.running = running();
  now.cache_entries = cache_.entries();
  now.cache_bytes = cache_.bytes();
  now.state_bytes = batch_.bytes();
  return now;
}

void Scheduler::step() {
  read_prompts();
  decode();
}

template <class Work>
bool Scheduler::goes_on(Sequence& sequence, const Work& work) {
  try {
    const std::optional<EndReason> reason = work();
    if (!reason) return true;
    sequence.end(*reason);
  } catch (...) {
    sequence.fail(std::current_exception());
  }
  ++metrics_.requests;
  return false;
}

void Scheduler::end(Sequence& sequence, EndReason reason) {
  goes_on(sequence, [&] { return std::optional(reason); });
}

void Scheduler::end(EndReason reason, const std::function<bool(const Sequence&)>& which) {
  for (size_t i = decoding_.size(); i-- > 0;)
    if (which(*decoding_[i])) {
      end(*decoding_[i], reason);
      leave(i);
    }
  std::erase_if(reading_, [&](const std::unique_ptr<Sequence>& sequence) {
    const bool chosen = which(*sequence);
    if (chosen) end(*sequence, reason);
    return chosen;
  });
}

void Scheduler::leave(size_t index) {
  batch_.leave(static_cast<int64_t>(index));
  std::swap(decoding_[index], decoding_.back());
  decoding_.pop_back();
}

void Scheduler::remember(const Sequence& sequence, const std::function<DecodeState()>& state) {
  const std::string& name = sequence.request().keep_state;
  const bool cached =
      sequence.usage().completion_tokens > 0 && cache_.takes(std::ssize(sequence.tokens()) - 1);
  if (name.empty() && !cached) return;
  const DecodeState copy = state();
  if (!name.empty())
    options_.states->save(
        name, {.tokens = sequence.tokens(),
               .state = copy.share(0, 1),
               .hidden = sequence.usage().completion_tokens == 0 ? sequence.hidden() : Tensor()});
  if (cached)
    cache_.keep_conversation({.tokens = sequence.tokens(), .state = copy.share(0, 1), .hidden = {}},
                             sequence.exact_tokens());
}

// As many tokens as a chunk has, of one prompt or of several short ones.
void Scheduler::read_prompts() {
  if (reading_.empty()) return;
  const Stopwatch watch;
  const auto ready = [&] { return !reading_.empty() && !reading_.front()->reading(); };
  for (int64_t left = options_.prompt_chunk; ready() || (!reading_.empty() && left > 0);) {
    if (model_.device().is_cuda() && !ready()) read_alike(left);
    read_one(left);
  }
  metrics_.prompt_seconds += watch.seconds();
}

void Scheduler::begin(Sequence& sequence) {
  if (sequence.begun()) return;
  sequence.begin(cache_);
  metrics_.cached_tokens += sequence.usage().cached_tokens;
  metrics_.cache_hits += sequence.usage().cached_tokens > 0 ? 1 : 0;
}

// Short prompts as long as the first one, together with it.
void Scheduler::read_alike(int64_t& left) {
  const auto length = [](const Sequence& sequence) { return std::ssize(sequence.tokens()); };
  const int64_t tokens = length(*reading_.front());
  std::vector<Sequence*> alike;
  for (const auto& sequence : reading_) {
    if ((std::ssize(alike) + 1) * tokens > options_.prompt_chunk) break;
    if (length(*sequence) == tokens && sequence->whole() && !cache_.find(sequence->tokens()))
      alike.push_back(sequence.get());
  }
  if (alike.size() < 2) return;
  try {
    Sequence::read_together(alike, cache_);
  } catch (const std::exception&) {
    return;  // each is read by itself then, and told what is wrong
  }
  left -= std::ssize(alike) * tokens;
  metrics_.prompt_tokens += std::ssize(alike) * tokens;
}

void Scheduler::read_one(int64_t& left) {
  std::unique_ptr<Sequence> sequence = std::move(reading_.front());
  reading_.pop_front();
  const bool alive = goes_on(*sequence, [&]() -> std::optional<EndReason> {
    begin(*sequence);
    if (sequence->reading()) {
      const int64_t tokens = sequence->read(options_.prompt_chunk, cache_);
      left -= tokens;
      metrics_.prompt_tokens += tokens;
    }
    if (sequence->reading()) return std::nullopt;
    sequence->tell_prompt();
    std::optional<EndReason> reason = EndReason::kMaxTokens;
    if (sequence->request().max_tokens > 0) {
      draw(sequence->first_logits(), {&sequence, 1});
      reason = sequence->tell();
      ++metrics_.generated_tokens;
    }
    if (reason)
      remember(*sequence,
               [&] { return copy_of(model_, sequence->state(), 0, sequence->state().longest()); });
    else
      batch_.join(sequence->state());
    sequence->forget_state();
    return reason;
  });
  if (!alive) return;
  if (sequence->reading())
    reading_.push_back(std::move(sequence));  // the others come first
  else
    decoding_.push_back(std::move(sequence));
}

void Scheduler::decode() {
  if (decoding_.empty()) return;
  const Stopwatch watch;
  try {
    std::vector<int64_t> ids;
    ids.reserve(decoding_.size());
    for (const auto& sequence : decoding_) ids.push_back(sequence->tokens().back());
    draw(batch_.step(ids), decoding_);
  } catch (...) {  // nobody knows what is in the states now
    for (const auto& sequence : decoding_) sequence->fail(std::current_exception());
    metrics_.requests += std::ssize(decoding_);
    decoding_.clear();
    batch_.clear();
    return;
  }
  ++metrics_.steps;
  metrics_.generated_tokens += std::ssize(decoding_);
  std::vector<size_t> ended;
  for (size_t i = 0; i < decoding_.size(); ++i) {
    Sequence& sequence = *decoding_[i];
    const bool alive = goes_on(sequence, [&] {
      const std::optional<EndReason> reason = sequence.tell();
      if (reason) remember(sequence, [&] { return batch_.copy(static_cast<int64_t>(i)); });
      return reason;
    });
    if (!alive) ended.push_back(i);
  }
  while (!ended.empty()) {  // from behind: a number that is given away has been looked at
    leave(ended.back());
    ended.pop_back();
  }
  metrics_.decode_seconds += watch.seconds();
}

void Scheduler::draw(const Tensor& logits, std::span<const std::unique_ptr<Sequence>> sequences) {
  if (!logits.device().is_cuda()) {
    parallel_for(std::ssize(sequences), [&](int64_t i) {
      const auto row = static_cast<size_t>(i);
      sequences[row]->draw(row_of(logits, row));
    });
    return;
  }
  std::vector<TokenDraw> draws;
  draws.reserve(sequences.size());
  for (const auto& sequence : sequences) draws.push_back(sequence->next_draw());
  const std::vector<int64_t> ids = draw_tokens(logits, draws);
  for (size_t i = 0; i < ids.size(); ++i)
    sequences[i]->take(ids[i], logits, static_cast<int64_t>(i));
}

}  // namespace dofla
