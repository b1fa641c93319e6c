// Remembers the ids of words: text repeats itself, and a look-up is far cheaper than merging.
// Two megabytes, fixed; a word takes the place of whatever was in its slot.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "dofla/checkpoint/tokenizer/hash_bytes.h"

namespace dofla {

class WordCache {
 public:
  // Appends the ids of `word` and returns true, or returns false if they are not known.
  bool append(std::string_view word, uint64_t hash, std::vector<int64_t>& ids) const {
    const Slot& slot = slots_[hash % kSlots];
    if (slot.length != word.size() || !equal_bytes(slot.word, word.data(), word.size()))
      return false;
    for (uint8_t i = 0; i < slot.count; ++i) ids.push_back(slot.ids[i]);
    return true;
  }

  // Words that are too long, or have too many ids, are not kept.
  void remember(std::string_view word, uint64_t hash, std::span<const int64_t> ids) {
    if (word.empty() || word.size() > sizeof(Slot::word) || ids.size() > kMostIds) return;
    Slot& slot = slots_[hash % kSlots];
    slot.length = static_cast<uint8_t>(word.size());
    slot.count = static_cast<uint8_t>(ids.size());
    std::memcpy(slot.word, word.data(), word.size());
    for (size_t i = 0; i < ids.size(); ++i) slot.ids[i] = static_cast<int32_t>(ids[i]);
  }

 private:
  static constexpr size_t kSlots = size_t{1} << 15;
  static constexpr size_t kMostIds = 8;

  struct alignas(64) Slot {  // one cache line
    uint8_t length = 0;      // 0: empty
    uint8_t count = 0;
    char word[30] = {};
    int32_t ids[kMostIds] = {};
  };
  static_assert(sizeof(Slot) == 64);

  std::vector<Slot> slots_ = std::vector<Slot>(kSlots);
};

}  // namespace dofla
