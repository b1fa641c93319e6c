#include "dofla/checkpoint/tokenizer/normalizer.h"

#include <cstdlib>

#include <gtest/gtest.h>
#include <utf8proc.h>

#include "tests/checkpoint/tokenizer/random_text.h"
#include "tests/support/expect_error.h"

namespace dofla {
namespace {

std::string normalized(const char* json, std::string_view text) {
  const Json parsed = Json::parse(json);
  std::string storage;
  return std::string(Normalizer::parse(JsonView(parsed, "test")).apply(text, storage));
}

std::string full_nfc(std::string text) {
  auto* raw = utf8proc_NFC(reinterpret_cast<const utf8proc_uint8_t*>(text.c_str()));
  std::string out = reinterpret_cast<const char*>(raw);
  std::free(raw);
  return out;
}

TEST(Normalizer, UnicodeForms) {
  EXPECT_EQ(normalized(R"({"type": "NFC"})", "e\u0301 ﬁ"), "é ﬁ");
  EXPECT_EQ(normalized(R"({"type": "NFD"})", "é ﬁ"), "e\u0301 ﬁ");
  EXPECT_EQ(normalized(R"({"type": "NFKC"})", "e\u0301 ﬁ"), "é fi");
  EXPECT_EQ(normalized(R"({"type": "NFKD"})", "é ﬁ"), "e\u0301 fi");
  EXPECT_EQ(normalized(R"({"type": "NFC"})", "\u2126\uAC00\u11A8\u1100\u1161"), "Ω\uAC01\uAC00");
  EXPECT_EQ(normalized(R"({"type": "NFC"})", std::string_view("a\0e\u0301", 5)),
            std::string("a\0é", 4));
}

TEST(Normalizer, QuickCheckNeverMissesAChange) {
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    Random random(seed);
    std::string text = test::random_text(random, 1 + static_cast<int>(random.below(4)));
    std::erase(text, '\0');  // utf8proc_NFC stops there
    if (is_quickly_nfc(text)) {
      ASSERT_EQ(full_nfc(text), text);
    }
  }
  for (char32_t code = 1; code < 0x110000; ++code) {  // each after a letter that combines
    if (code >= 0xD800 && code <= 0xDFFF) continue;
    std::string text = "a";
    test::append_utf8(code, text);
    if (is_quickly_nfc(text)) {
      ASSERT_EQ(full_nfc(text), text);
    }
  }
}

TEST(Normalizer, QuickCheckPassesOrdinaryText) {
  EXPECT_TRUE(is_quickly_nfc("naïve café “quotes” – 東京 Привет 🙂 한국어"));
  EXPECT_FALSE(is_quickly_nfc("cafe\u0301"));
}

TEST(Normalizer, PrependAndReplace) {
  const char* llama = R"({"type": "Sequence", "normalizers": [
      {"type": "Prepend", "prepend": "▁"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]})";
  EXPECT_EQ(normalized(llama, " a  b"), "▁▁a▁▁b");
  EXPECT_EQ(normalized(llama, ""), "");
  EXPECT_EQ(
      normalized(R"({"type": "Replace", "pattern": {"Regex": "a+"}, "content": "$0"})", "caab"),
      "c$0b");
  EXPECT_EQ(normalized("null", " x"), " x");
}

TEST(Normalizer, ALetterDoesNotBecomeGigabytes) {
  for (const char* kind : {"String", "Regex"}) {
    Json steps = Json::array();
    for (int i = 0; i < 12; ++i)
      steps.push_back({{"type", "Replace"}, {"pattern", {{kind, "a"}}}, {"content", "aaaaaaaaaa"}});
    const std::string json = Json{{"type", "Sequence"}, {"normalizers", steps}}.dump();
    test::expect_error([&] { normalized(json.c_str(), "a"); },
                       {"test: normalizers: ", "pattern: makes more than 1040 bytes"});
  }
  // What real files do stays within the bound.
  EXPECT_EQ(normalized(R"({"type": "NFKD"})", "\uFDFA\uFDFA").size(), 66u);
  EXPECT_EQ(
      normalized(R"({"type": "Replace", "pattern": {"String": "ab"}, "content": ""})", "abab"), "");
}

}  // namespace
}  // namespace dofla
