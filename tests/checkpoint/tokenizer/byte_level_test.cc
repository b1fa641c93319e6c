#include "dofla/checkpoint/tokenizer/byte_level.h"

#include <set>

#include <gtest/gtest.h>

#include "dofla/checkpoint/tokenizer/unicode.h"

namespace dofla {
namespace {

TEST(ByteLevel, EveryByteHasACharacterOfItsOwn) {
  std::set<std::string> seen;
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    std::string token;
    append_byte_characters({&c, 1}, token);
    EXPECT_TRUE(is_utf8(token));
    EXPECT_TRUE(seen.insert(token).second);
    std::string back;
    append_token_bytes(token, back);
    EXPECT_EQ(back, std::string(1, c));
  }
}

TEST(ByteLevel, SpellsAsGpt2Does) {
  std::string out;
  append_byte_characters(" a\n\xC3\xA9\x7F\xAD", out);
  EXPECT_EQ(out, "ĠaĊÃ©ġŃ");
}

TEST(ByteLevel, ATokenOutsideTheAlphabetStandsForItself) {
  std::string out = "x";
  append_token_bytes("Ġ a", out);  // has a real space
  EXPECT_EQ(out, "xĠ a");
}

}  // namespace
}  // namespace dofla
