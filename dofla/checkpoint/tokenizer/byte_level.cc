#include "dofla/checkpoint/tokenizer/byte_level.h"

#include <array>
#include <cstdint>

#include "dofla/checkpoint/tokenizer/unicode.h"

namespace dofla {
namespace {

constexpr int kEnd = 0x144;  // the alphabet lies in [0x21, 0x144)

constexpr bool stands_for_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
}

struct Alphabet {
  std::array<uint16_t, 256> character{};
  std::array<int16_t, kEnd> byte{};  // -1: not in the alphabet
};

constexpr Alphabet kAlphabet = [] {
  Alphabet alphabet;
  alphabet.byte.fill(-1);
  int next = 0x100;  // the other bytes, in order
  for (int byte = 0; byte < 256; ++byte) {
    const int character = stands_for_itself(byte) ? byte : next++;
    alphabet.character[static_cast<size_t>(byte)] = static_cast<uint16_t>(character);
    alphabet.byte[static_cast<size_t>(character)] = static_cast<int16_t>(byte);
  }
  return alphabet;
}();

}  // namespace

void append_byte_characters(std::string_view bytes, std::string& out) {
  for (const char byte : bytes) {
    const uint16_t character = kAlphabet.character[static_cast<uint8_t>(byte)];
    if (character < 0x80) {
      out.push_back(static_cast<char>(character));
    } else {
      out.push_back(static_cast<char>(0xC0 | character >> 6));
      out.push_back(static_cast<char>(0x80 | (character & 0x3F)));
    }
  }
}

void append_token_bytes(std::string_view token, std::string& out) {
  const size_t before = out.size();
  for (size_t at = 0; at < token.size();) {
    const Character character = character_at(token, at);
    const int byte = character.code < kEnd ? kAlphabet.byte[character.code] : -1;
    if (byte < 0) {
      out.resize(before);
      out.append(token);
      return;
    }
    out.push_back(static_cast<char>(byte));
    at += character.length;
  }
}

}  // namespace dofla
