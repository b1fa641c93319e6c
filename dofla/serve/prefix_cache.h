// What a model remembers of prompts and conversations seen before, so that one that begins alike
// need not be read again. The least recently used goes first. docs/serve.md says where a text may
// be taken up.
#pragma once

#include <list>
#include <memory>
#include <optional>

#include "dofla/serve/snapshot.h"

namespace dofla {

class PrefixCache {
 public:
  // Takes up to `memory` bytes; prompts are read `chunk` tokens at a time.
  PrefixCache(const Transformer& model, int64_t memory, int64_t chunk);

  struct Found {
    std::shared_ptr<const Snapshot> snapshot;
    int64_t tokens = 0;  // of it that are the prompt's beginning, or the whole prompt
    bool exact = true;   // the state has the bits that reading from the beginning gives
  };
  // What saves the most reading; nothing where there is none.
  std::optional<Found> find(const TokenIds& prompt);

  // Keeps a text that was read from its beginning a chunk at a time, up to a boundary between two
  // chunks or to its end; its hidden state has to be there.
  void keep_prompt(Snapshot snapshot);
  // Whether it is worth it after `read` of the prompt's tokens.
  bool wants_prompt(int64_t read, int64_t length) const;
  // Keeps a text of which the first `exact` tokens were read like that, and the others some way.
  void keep_conversation(Snapshot snapshot, int64_t exact);
  bool takes(int64_t tokens) const;  // whether a text of so many is worth it

  int64_t bytes() const { return bytes_; }
  int64_t entries() const { return std::ssize(entries_); }

 private:
  struct Entry {
    std::shared_ptr<const Snapshot> snapshot;
    int64_t exact;      // tokens
    bool conversation;  // whoever goes on from its end may do so
    int64_t bytes;
  };
  int64_t usable(const Entry& entry, const TokenIds& prompt) const;
  void keep(Snapshot snapshot, int64_t exact, bool conversation);

  const int64_t memory_, chunk_;
  const bool can_be_cut_;     // caches alone: the beginning of a text is in the state of the whole
  std::list<Entry> entries_;  // the last used one in front
  int64_t bytes_ = 0;
};

}  // namespace dofla
