// Hashing and comparing short byte strings eight bytes at a time. Tokenizing English is little
// more than this, and the library's memcmp and std::hash cost a call for every word.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

namespace dofla {

template <class Word>
inline Word load_word(const char* from) {
  Word word;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

inline uint64_t hash_bytes(std::string_view bytes) {
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15u;
  const char* at = bytes.data();
  const size_t size = bytes.size();
  uint64_t hash = size * kOdd;
  const auto absorb = [&hash](uint64_t word) {
    hash = (hash ^ word) * kOdd;
    hash ^= hash >> 32;
  };
  if (size >= 8) {
    for (size_t i = 0; i + 8 < size; i += 8) absorb(load_word<uint64_t>(at + i));
    absorb(load_word<uint64_t>(at + size - 8));  // overlaps the word before unless 8 divides size
  } else if (size >= 4) {
    absorb(load_word<uint32_t>(at) | uint64_t{load_word<uint32_t>(at + size - 4)} << 32);
  } else if (size > 0) {
    const auto byte = [at](size_t i) { return uint64_t{static_cast<uint8_t>(at[i])}; };
    absorb(byte(0) | byte(size / 2) << 8 | byte(size - 1) << 16);
  }
  return hash;
}

inline bool equal_bytes(const char* a, const char* b, size_t size) {
  if (size >= 8) {
    for (size_t i = 0; i + 8 < size; i += 8)
      if (load_word<uint64_t>(a + i) != load_word<uint64_t>(b + i)) return false;
    return load_word<uint64_t>(a + size - 8) == load_word<uint64_t>(b + size - 8);
  }
  if (size >= 4)
    return load_word<uint32_t>(a) == load_word<uint32_t>(b) &&
           load_word<uint32_t>(a + size - 4) == load_word<uint32_t>(b + size - 4);
  for (size_t i = 0; i < size; ++i)
    if (a[i] != b[i]) return false;
  return true;
}

}  // namespace dofla
