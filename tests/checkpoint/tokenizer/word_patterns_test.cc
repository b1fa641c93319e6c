#include "dofla/checkpoint/tokenizer/word_patterns.h"

#include <map>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dofla/checkpoint/tokenizer/pattern.h"
#include "dofla/checkpoint/tokenizer/unicode.h"
#include "tests/checkpoint/tokenizer/random_text.h"

namespace dofla {
namespace {

using Words = std::vector<std::string>;

Words words_by_hand(std::string_view regex, std::string_view text) {
  const WordEnd word_end = word_end_of(regex);
  Words words;
  for (size_t at = 0; at < text.size();) {
    const size_t end = word_end(text, at);
    words.emplace_back(text.substr(at, end - at));
    at = end;
  }
  return words;
}

Words words_by_engine(const Pattern& pattern, std::string_view text) {
  Words words;
  for (const Pattern::Match& match : pattern.matches(text))
    words.emplace_back(text.substr(match.begin, match.end - match.begin));
  return words;
}

// Every code point but the surrogates, end to end.
const std::string& all_code_points() {
  static const std::string text = [] {
    std::string out;
    for (char32_t code = 0; code < 0x110000; ++code)
      if (code < 0xD800 || code > 0xDFFF) test::append_utf8(code, out);
    return out;
  }();
  return text;
}

std::set<char32_t> code_points_that_match(std::string_view regex) {
  std::set<char32_t> found;
  const Pattern pattern = Pattern::regex(regex, "test");
  for (const Pattern::Match& match : pattern.matches(all_code_points()))
    found.insert(character_at(all_code_points(), match.begin).code);
  return found;
}

// Those on which the two Unicode libraries cannot agree: not yet assigned in PCRE2's version, and
// U+180E, which PCRE2 calls a space though it has lost the property White_Space.
const std::set<char32_t>& disputed_code_points() {
  static const std::set<char32_t> disputed = [] {
    std::set<char32_t> out = code_points_that_match(R"(\p{Cn})");
    out.insert(0x180E);
    return out;
  }();
  return disputed;
}

std::string without_disputed(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const Character character = character_at(text, at);
    if (!disputed_code_points().contains(character.code))
      out.append(text.substr(at, character.length));
    at += character.length;
  }
  return out;
}

TEST(WordPatterns, ClassesAgreeWithPcre2OnEveryCodePoint) {
  const std::map<CharClass, std::set<char32_t>> expected = {
      {CharClass::kLetter, code_points_that_match(R"(\p{L})")},
      {CharClass::kNumber, code_points_that_match(R"(\p{N})")},
      {CharClass::kSpace, code_points_that_match(R"(\s)")},
      {CharClass::kOther, code_points_that_match(R"([^\s\p{L}\p{N}])")}};
  for (char32_t code = 0; code < 0x110000; ++code) {
    if ((code >= 0xD800 && code <= 0xDFFF) || disputed_code_points().contains(code)) continue;
    EXPECT_TRUE(expected.at(classify(code)).contains(code)) << "U+" << std::hex << uint32_t{code};
  }
}

class SplitByHand : public testing::TestWithParam<std::string_view> {};

TEST_P(SplitByHand, EqualsTheEngineOnRandomText) {
  const Pattern pattern = Pattern::regex(GetParam(), "test");
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    Random random(seed);
    const std::string text =
        without_disputed(test::random_text(random, 1 + static_cast<int>(random.below(30))));
    ASSERT_EQ(words_by_hand(GetParam(), text), words_by_engine(pattern, text)) << text;
  }
}

TEST_P(SplitByHand, EqualsTheEngineOnEveryCodePoint) {
  const Pattern pattern = Pattern::regex(GetParam(), "test");
  const std::string text = without_disputed(all_code_points());
  EXPECT_EQ(words_by_hand(GetParam(), text), words_by_engine(pattern, text));
}

TEST_P(SplitByHand, EqualsTheEngineOnAllShortStringsOfTrickyCharacters) {
  const Pattern pattern = Pattern::regex(GetParam(), "test");
  const std::string alphabet = " \n\r\t'slLre1.a";
  const size_t n = alphabet.size();
  for (size_t code = 0; code < n * n * n * n; ++code) {
    std::string text;
    for (size_t rest = code, i = 0; i < 4; ++i, rest /= n) text.push_back(alphabet[rest % n]);
    ASSERT_EQ(words_by_hand(GetParam(), text), words_by_engine(pattern, text)) << text;
  }
}

std::string pattern_name(const testing::TestParamInfo<std::string_view>& instance) {
  constexpr const char* kNames[] = {"Gpt2", "Llama3", "Qwen2"};
  return kNames[instance.index];
}

INSTANTIATE_TEST_SUITE_P(Patterns, SplitByHand,
                         testing::Values(kGpt2Pattern, kLlama3Pattern, kQwen2Pattern),
                         pattern_name);

TEST(WordPatterns, KnowsNoOtherExpression) {
  EXPECT_EQ(word_end_of(R"(\p{L}+)"), nullptr);
}

TEST(WordPatterns, SplitsAsTheModelsDo) {
  const std::string text = "I'll  PAY 12345\n\n you";
  EXPECT_EQ(words_by_hand(kGpt2Pattern, text),
            (Words{"I", "'ll", " ", " PAY", " 12345", "\n\n", " you"}));
  EXPECT_EQ(words_by_hand(kLlama3Pattern, text),
            (Words{"I", "'ll", " ", " PAY", " ", "123", "45", "\n\n", " you"}));
  EXPECT_EQ(words_by_hand(kQwen2Pattern, "HE'LL 12"), (Words{"HE", "'LL", " ", "1", "2"}));
}

TEST(WordPatterns, MarksStartWords) {
  const std::string_view text = "▁▁a▁b";
  EXPECT_EQ(word_end_before_mark(text, 0), 3u);
  EXPECT_EQ(word_end_before_mark(text, 3), 7u);
  EXPECT_EQ(word_end_before_mark(text, 7), text.size());
  EXPECT_EQ(word_end_before_mark_run(text, 0), 7u);
  EXPECT_EQ(word_end_before_mark_run(text, 7), text.size());
}

}  // namespace
}  // namespace dofla
