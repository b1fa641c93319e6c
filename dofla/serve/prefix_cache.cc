#include "dofla/serve/prefix_cache.h"

#include <algorithm>

namespace dofla {
namespace {

// Fewer tokens are read again about as fast as they are copied.
constexpr int64_t kWorthKeeping = 16;

}  // namespace

PrefixCache::PrefixCache(const Transformer& model, int64_t memory, int64_t chunk)
    : memory_(memory), chunk_(chunk), can_be_cut_(all_layers_grow(model)) {}

bool PrefixCache::takes(int64_t tokens) const {
  return memory_ > 0 && tokens >= kWorthKeeping;
}

bool PrefixCache::wants_prompt(int64_t read, int64_t length) const {
  return takes(read) && (read == length || (read % chunk_ == 0 && !can_be_cut_));
}

// How many tokens of the prompt the entry saves; 0 where it cannot be used.
int64_t PrefixCache::usable(const Entry& entry, const TokenIds& prompt) const {
  const Snapshot& snapshot = *entry.snapshot;
  const int64_t read = snapshot.read(), length = std::ssize(prompt);
  const int64_t most = std::min(read, length);
  const int64_t common =
      std::mismatch(prompt.begin(), prompt.begin() + most, snapshot.tokens.begin()).first -
      prompt.begin();
  if (common == read) {
    if (read == length && snapshot.hidden.defined()) return read;  // the very same prompt
    if (read < length && (read % chunk_ == 0 || entry.conversation)) return read;
  }
  if (!can_be_cut_) return 0;
  // Something of the prompt has to be left to read.
  return std::min({common, entry.exact, length - 1}) / chunk_ * chunk_;
}

std::optional<PrefixCache::Found> PrefixCache::find(const TokenIds& prompt) {
  auto best = entries_.end();
  int64_t most = 0;
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    const int64_t tokens = usable(*entry, prompt);
    if (tokens <= most) continue;
    most = tokens;
    best = entry;
  }
  if (best == entries_.end()) return std::nullopt;
  entries_.splice(entries_.begin(), entries_, best);
  return Found{best->snapshot, most, most <= best->exact};
}

void PrefixCache::keep_prompt(Snapshot snapshot) {
  const int64_t read = snapshot.read();
  keep(std::move(snapshot), read, false);
}

void PrefixCache::keep_conversation(Snapshot snapshot, int64_t exact) {
  keep(std::move(snapshot), exact, true);
}

void PrefixCache::keep(Snapshot snapshot, int64_t exact, bool conversation) {
  const int64_t read = snapshot.read(), bytes = snapshot.bytes();
  if (!takes(read) || bytes > memory_) return;
  const auto same = std::ranges::find_if(entries_, [&](const Entry& entry) {
    return entry.conversation == conversation && entry.snapshot->read() == read &&
           std::equal(snapshot.tokens.begin(), snapshot.tokens.begin() + read,
                      entry.snapshot->tokens.begin());
  });
  if (same != entries_.end()) {
    entries_.splice(entries_.begin(), entries_, same);
    return;
  }
  entries_.push_front(
      {std::make_shared<const Snapshot>(std::move(snapshot)), exact, conversation, bytes});
  bytes_ += bytes;
  while (bytes_ > memory_) {
    bytes_ -= entries_.back().bytes;
    entries_.pop_back();
  }
}

}  // namespace dofla
