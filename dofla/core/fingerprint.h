// A hash that distinguishes contents too large to be stored.
#pragma once

#include <cstdint>
#include <string>

#include <fmt/format.h>

namespace dofla {

// Of whatever is given to it, word by word (FNV-1a).
class Fingerprint {
 public:
  void add(uint64_t word) { hash_ = (hash_ ^ word) * 0x100000001b3u; }
  std::string text() const { return fmt::format("{:016x}", hash_); }

 private:
  uint64_t hash_ = 0xcbf29ce484222325u;
};

}  // namespace dofla
