// A hash that distinguishes contents too large to be stored.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include <fmt/format.h>

namespace dofla {

// Of whatever is given to it, word by word (FNV-1a). Two contents that differ in one word never
// have the same one: for a given word the step is a bijection of the hash, and for a given hash one
// of the word.
class Fingerprint {
 public:
  void add(uint64_t word) { hash_ = (hash_ ^ word) * 0x100000001b3u; }
  void add(std::span<const std::byte> bytes) {
    add(bytes.size());
    for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, bytes.data() + at, std::min(sizeof(word), bytes.size() - at));
      add(word);
    }
  }
  std::string text() const { return fmt::format("{:016x}", hash_); }

 private:
  uint64_t hash_ = 0xcbf29ce484222325u;
};

}  // namespace dofla
