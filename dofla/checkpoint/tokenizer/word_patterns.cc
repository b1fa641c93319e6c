#include "dofla/checkpoint/tokenizer/word_patterns.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "dofla/checkpoint/tokenizer/unicode.h"

namespace dofla {
namespace {

constexpr std::array<CharClass, 128> kAsciiClass = [] {
  std::array<CharClass, 128> out{};  // kOther
  for (size_t c = 'a'; c <= 'z'; ++c) out[c] = out[c - 'a' + 'A'] = CharClass::kLetter;
  for (size_t c = '0'; c <= '9'; ++c) out[c] = CharClass::kNumber;
  for (size_t c = '\t'; c <= '\r'; ++c) out[c] = CharClass::kSpace;
  out[' '] = CharClass::kSpace;
  return out;
}();

struct Look {
  CharClass kind;
  size_t length;
};

inline Look look(std::string_view text, size_t at) {
  const auto byte = static_cast<uint8_t>(text[at]);
  if (byte < 0x80) return {kAsciiClass[byte], 1};
  const Character character = character_at(text, at);
  return {classify(character.code), character.length};
}

inline size_t skip(std::string_view text, size_t at, CharClass kind) {
  while (at < text.size()) {
    const Look here = look(text, at);
    if (here.kind != kind) break;
    at += here.length;
  }
  return at;
}

inline bool is_newline(char c) {
  return c == '\r' || c == '\n';
}

// \s+(?!\S)|\s+ : the last space before a word goes with the word, unless it stands alone.
size_t space_run_end(std::string_view text, size_t at) {
  const size_t end = skip(text, at, CharClass::kSpace);
  if (end == text.size()) return end;
  const size_t last = character_before(text, end);
  return last > at ? last : end;
}

// 's|'t|'re|'ve|'m|'ll|'d : the bytes of the contraction at `at`, 0 if there is none.
template <bool any_case>
size_t contraction(std::string_view text, size_t at) {
  const std::string_view after = text.substr(at + 1);
  const auto letter = [&](size_t i) {
    const char c = i < after.size() ? after[i] : '\0';
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  switch (letter(0)) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 2;
    case 'r':
    case 'v':
      return letter(1) == 'e' ? 3 : 0;
    case 'l':
      return letter(1) == 'l' ? 3 : 0;
    default:
      break;
  }
  constexpr std::string_view kLongS = "\xC5\xBF";  // U+017F is an s to a caseless match
  return any_case && after.starts_with(kLongS) ? 3 : 0;
}

size_t gpt2_word_end(std::string_view text, size_t at) {
  if (text[at] == '\'')
    if (const size_t length = contraction<false>(text, at); length > 0) return at + length;
  const size_t start = text[at] == ' ' && at + 1 < text.size() ? at + 1 : at;
  const Look first = look(text, start);
  if (first.kind == CharClass::kSpace) return space_run_end(text, at);
  return skip(text, start + first.length, first.kind);
}

size_t digits_end(std::string_view text, size_t at, int most) {
  for (int taken = 0; taken < most && at < text.size(); ++taken) {
    const Look here = look(text, at);
    if (here.kind != CharClass::kNumber) break;
    at += here.length;
  }
  return at;
}

// Llama 3 and Qwen 2 differ in the number of digits that make a word.
template <int most_digits>
size_t llama3_word_end(std::string_view text, size_t at) {
  const char c = text[at];
  if (c == '\'')
    if (const size_t length = contraction<true>(text, at); length > 0) return at + length;
  const Look first = look(text, at);
  const size_t next = at + first.length;
  if (first.kind == CharClass::kLetter) return skip(text, next, CharClass::kLetter);
  if (first.kind == CharClass::kNumber) return digits_end(text, at, most_digits);

  const CharClass second = next < text.size() ? look(text, next).kind : CharClass::kSpace;
  if (second == CharClass::kLetter && !is_newline(c)) return skip(text, next, CharClass::kLetter);
  if (first.kind == CharClass::kOther || (c == ' ' && second == CharClass::kOther)) {
    size_t end = skip(text, next, CharClass::kOther);
    while (end < text.size() && is_newline(text[end])) ++end;
    return end;
  }
  const std::string_view spaces = text.substr(at, skip(text, at, CharClass::kSpace) - at);
  if (const size_t newline = spaces.find_last_of("\r\n"); newline != spaces.npos)
    return at + newline + 1;
  return space_run_end(text, at);
}

}  // namespace

WordEnd word_end_of(std::string_view regex) {
  if (regex == kGpt2Pattern) return gpt2_word_end;
  if (regex == kLlama3Pattern) return llama3_word_end<3>;
  if (regex == kQwen2Pattern) return llama3_word_end<1>;
  return nullptr;
}

size_t word_end_before_mark(std::string_view text, size_t at) {
  return std::min(text.find(kSpaceMark, at + 1), text.size());
}

size_t word_end_before_mark_run(std::string_view text, size_t at) {
  while (text.substr(at).starts_with(kSpaceMark)) at += kSpaceMark.size();
  return std::min(text.find(kSpaceMark, at), text.size());
}

}  // namespace dofla
