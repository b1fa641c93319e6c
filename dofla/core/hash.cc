#include "dofla/core/hash.h"

#include <array>
#include <bit>
#include <cstring>

namespace dofla {
namespace {

constexpr uint64_t kPrime1 = 0x9e3779b185ebca87u, kPrime2 = 0xc2b2ae3d27d4eb4fu,
                   kPrime3 = 0x165667b19e3779f9u, kPrime4 = 0x85ebca77c2b2ae63u,
                   kPrime5 = 0x27d4eb2f165667c5u;

template <class Word>
uint64_t word_at(const std::byte* from) {
  static_assert(std::endian::native == std::endian::little);
  Word word;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

uint64_t round(uint64_t sum, uint64_t word) {
  return std::rotl(sum + word * kPrime2, 31) * kPrime1;
}

}  // namespace

uint64_t xxh64(std::span<const std::byte> bytes) {
  const std::byte* at = bytes.data();
  size_t left = bytes.size();
  uint64_t hash = kPrime5;
  if (left >= 32) {
    // Four sums, so that the processor need not wait for one before it goes on with the next.
    std::array<uint64_t, 4> sums = {kPrime1 + kPrime2, kPrime2, 0, 0 - kPrime1};
    for (; left >= 32; left -= 32)
      for (uint64_t& sum : sums) {
        sum = round(sum, word_at<uint64_t>(at));
        at += 8;
      }
    hash = std::rotl(sums[0], 1) + std::rotl(sums[1], 7) + std::rotl(sums[2], 12) +
           std::rotl(sums[3], 18);
    for (const uint64_t sum : sums) hash = (hash ^ round(0, sum)) * kPrime1 + kPrime4;
  }
  hash += bytes.size();
  for (; left >= 8; left -= 8, at += 8)
    hash = std::rotl(hash ^ round(0, word_at<uint64_t>(at)), 27) * kPrime1 + kPrime4;
  for (; left >= 4; left -= 4, at += 4)
    hash = std::rotl(hash ^ (word_at<uint32_t>(at) * kPrime1), 23) * kPrime2 + kPrime3;
  for (; left > 0; --left, ++at)
    hash = std::rotl(hash ^ (std::to_integer<uint64_t>(*at) * kPrime5), 11) * kPrime1;
  hash = (hash ^ (hash >> 33)) * kPrime2;
  hash = (hash ^ (hash >> 29)) * kPrime3;
  return hash ^ (hash >> 32);
}

}  // namespace dofla
