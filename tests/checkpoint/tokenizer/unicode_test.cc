#include "dofla/checkpoint/tokenizer/unicode.h"

#include <gtest/gtest.h>

#include "tests/checkpoint/tokenizer/random_text.h"

namespace dofla {
namespace {

std::string repaired(std::string_view bytes) {
  std::string out;
  EXPECT_EQ(append_repaired(bytes, false, out), bytes.size());
  return out;
}

TEST(Unicode, RepairsByMaximalSubparts) {
  EXPECT_EQ(repaired("plain é €"), "plain é €");
  // Table 3-8 of the Unicode standard.
  EXPECT_EQ(repaired("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA");
  EXPECT_EQ(repaired("\xED\xA0\x80\x41"), "\uFFFD\uFFFD\uFFFDA");  // a surrogate
  EXPECT_EQ(repaired("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA\uFFFD\uFFFDB");
  EXPECT_EQ(repaired("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), "\uFFFD\uFFFD\uFFFD\uFFFDA");
  EXPECT_EQ(repaired("abcdefgh\xE2\x82"), "abcdefgh\uFFFD");
}

TEST(Unicode, LeavesACutOffCharacterToWhatFollows) {
  std::string out;
  EXPECT_EQ(append_repaired("a\xF0\x9F\x99", true, out), 1u);
  EXPECT_EQ(append_repaired("\xF0\x9F\x41", true, out), 3u);  // broken, not cut off
  EXPECT_EQ(out, "a\uFFFDA");
}

TEST(Unicode, ReadsEveryCodePointBothWays) {
  for (char32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xD800 && code <= 0xDFFF) continue;
    std::string text;
    test::append_utf8(code, text);
    ASSERT_TRUE(is_utf8(text));
    ASSERT_FALSE(is_utf8(text.substr(0, text.size() - 1) + "\xFF"));
    const Character character = character_at(text, 0);
    ASSERT_EQ(character.code, code);
    ASSERT_EQ(character.length, text.size());
    ASSERT_EQ(character_before(text + text, 2 * text.size()), text.size());
  }
}

TEST(Unicode, WordCharacters) {
  for (const char32_t code : std::u32string_view(U"aZ9_é\u0301二Ⅷ\u200dⓐ"))
    EXPECT_TRUE(is_word_character(code)) << uint32_t{code};
  for (const char32_t code : {U' ', U'-', U'½', U'🙂', U'\u2000', U'<'})
    EXPECT_FALSE(is_word_character(code)) << uint32_t{code};
}

}  // namespace
}  // namespace dofla
