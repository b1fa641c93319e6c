// UTF-8 and the character classes that tokenizers split by.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dofla {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

bool is_utf8(std::string_view bytes);

// Appends `bytes` to `out`, with U+FFFD for each ill-formed sequence (a maximal subpart, as the
// Unicode standard recommends). With `more_follows`, a sequence cut off by the end is left alone.
// Returns the number of bytes dealt with.
size_t append_repaired(std::string_view bytes, bool more_follows, std::string& out);

struct Character {
  char32_t code;
  size_t length;  // bytes
};

// The character at `at` < text.size() of well-formed UTF-8.
Character character_at(std::string_view text, size_t at);

// The start of the character that ends at `end` > 0.
size_t character_before(std::string_view text, size_t end);

// Regular expressions' \p{L}, \p{N}, \s (the property White_Space) and none of these.
enum class CharClass : uint8_t { kOther, kLetter, kNumber, kSpace };
CharClass classify(char32_t code);

bool is_word_character(char32_t code);  // \w: alphabetic, mark, decimal digit, connector, joiner

}  // namespace dofla
