#include "dofla/checkpoint/tokenizer/unicode.h"

#include <utf8proc.h>

#include "dofla/checkpoint/tokenizer/hash_bytes.h"

namespace dofla {
namespace {

enum class Form { kWhole, kBroken, kCutOff };
struct Sequence {
  Form form;
  size_t length;  // of the character, or of the ill-formed part to replace by one U+FFFD
};

// Table 3-7 of the Unicode standard: only the second byte has a range of its own.
Sequence sequence_at(std::string_view bytes, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(bytes[at + i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {Form::kWhole, 1};
  if (lead < 0xC2 || lead > 0xF4) return {Form::kBroken, 1};
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  uint8_t lowest = 0x80;
  uint8_t highest = 0xBF;
  if (lead == 0xE0) lowest = 0xA0;
  if (lead == 0xED) highest = 0x9F;
  if (lead == 0xF0) lowest = 0x90;
  if (lead == 0xF4) highest = 0x8F;
  for (size_t i = 1; i < length; ++i) {
    if (at + i == bytes.size()) return {Form::kCutOff, i};
    if (byte(i) < lowest || byte(i) > highest) return {Form::kBroken, i};
    lowest = 0x80;
    highest = 0xBF;
  }
  return {Form::kWhole, length};
}

// The end of the well-formed text that starts at `at`.
size_t well_formed_end(std::string_view bytes, size_t at) {
  constexpr uint64_t kHighBits = 0x8080808080808080u;
  while (at < bytes.size()) {
    if (at + 8 <= bytes.size() && (load_word<uint64_t>(bytes.data() + at) & kHighBits) == 0) {
      at += 8;
      continue;
    }
    const Sequence sequence = sequence_at(bytes, at);
    if (sequence.form != Form::kWhole) break;
    at += sequence.length;
  }
  return at;
}

}  // namespace

bool is_utf8(std::string_view bytes) {
  return well_formed_end(bytes, 0) == bytes.size();
}

size_t append_repaired(std::string_view bytes, bool more_follows, std::string& out) {
  size_t at = 0;
  while (at < bytes.size()) {
    const size_t end = well_formed_end(bytes, at);
    out.append(bytes.substr(at, end - at));
    at = end;
    if (at == bytes.size()) break;
    const Sequence sequence = sequence_at(bytes, at);
    if (sequence.form == Form::kCutOff && more_follows) break;
    out.append(kReplacementCharacter);
    at += sequence.length;
  }
  return at;
}

Character character_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return char32_t{static_cast<uint8_t>(text[at + i])}; };
  const auto tail = [&](size_t i) { return byte(i) & 0x3F; };
  const char32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {(lead & 0x1F) << 6 | tail(1), 2};
  if (lead < 0xF0) return {(lead & 0x0F) << 12 | tail(1) << 6 | tail(2), 3};
  return {(lead & 0x07) << 18 | tail(1) << 12 | tail(2) << 6 | tail(3), 4};
}

size_t character_before(std::string_view text, size_t end) {
  do --end;
  while (end > 0 && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80);
  return end;
}

CharClass classify(char32_t code) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return CharClass::kLetter;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return CharClass::kNumber;
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return CharClass::kSpace;
    case UTF8PROC_CATEGORY_CC:  // tab, line feed, vertical tab, form feed, return, next line
      return (code >= 0x09 && code <= 0x0D) || code == 0x85 ? CharClass::kSpace : CharClass::kOther;
    default:
      return CharClass::kOther;
  }
}

bool is_word_character(char32_t code) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    case UTF8PROC_CATEGORY_CF:
      return code == 0x200C || code == 0x200D;  // the two joiners
    case UTF8PROC_CATEGORY_SO:  // circled, squared and parenthesized letters are alphabetic
      return (code >= 0x24B6 && code <= 0x24E9) || (code >= 0x1F130 && code <= 0x1F149) ||
             (code >= 0x1F150 && code <= 0x1F169) || (code >= 0x1F170 && code <= 0x1F189);
    default:
      return classify(code) == CharClass::kLetter;
  }
}

}  // namespace dofla
