// Text that provokes tokenizers: every script, odd spaces, contractions, marks, digits.
#pragma once

#include <string>
#include <string_view>

#include "dofla/core/random.h"

namespace dofla::test {

inline void append_utf8(char32_t code, std::string& out) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6);
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3F));
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

inline char32_t random_code_point(Random& random) {  // all planes, the first ones more often
  constexpr uint64_t kEnds[] = {0x80, 0x250, 0x800, 0x3100, 0x10000, 0x20000, 0x110000};
  while (true) {
    const auto code = static_cast<char32_t>(random.below(kEnds[random.below(7)]));
    if (code < 0xD800 || code > 0xDFFF) return code;
  }
}

inline std::string random_text(Random& random, int pieces) {
  constexpr std::string_view kPieces[] = {
      " ",    "  ",       "\n",        "\r\n",   "\t",     "'s",       "'LL",    "'Re",
      "'ve",  "'",        "'\xC5\xBF", "’s",     "a",      "Z",        "word",   "7",
      "2024", "12",       ".",         "...",    "-",      "\xC2\xA0", "é",      "e\u0301",
      "½",    "二",       "東京",      "\u2003", "\u3000", "🙂",     "\u200d", "ß",
      "\x0b", "\xC2\x85", "\u2028",    "_",      "▁",      "ก็",        "٣",      "Ⅷ"};
  std::string out;
  for (int i = 0; i < pieces; ++i) {
    if (random.below(4) == 0) {
      append_utf8(random_code_point(random), out);
    } else {
      out.append(kPieces[random.below(std::size(kPieces))]);
    }
  }
  return out;
}

}  // namespace dofla::test
