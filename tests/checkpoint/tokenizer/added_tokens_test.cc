#include "dofla/checkpoint/tokenizer/added_tokens.h"

#include <initializer_list>

#include <gtest/gtest.h>

namespace dofla {
namespace {

// The text of each stretch, and "#id" for each token.
std::vector<std::string> split(std::initializer_list<AddedToken> tokens, std::string_view text) {
  TokenFinder finder;
  for (const AddedToken& token : tokens) finder.add(token.content, token);
  std::vector<Segment> segments;
  finder.split(text, segments);
  std::vector<std::string> out;
  for (const Segment& segment : segments)
    out.push_back(segment.id < 0 ? std::string(segment.text) : fmt::format("#{}", segment.id));
  return out;
}

using Strings = std::vector<std::string>;

TEST(AddedTokens, TheLeftmostThenTheLongestWins) {
  const AddedToken two = {.content = "  ", .id = 2};
  const AddedToken four = {.content = "    ", .id = 4};
  EXPECT_EQ(split({two, four}, "a       b"), (Strings{"a", "#4", "#2", " b"}));
  const AddedToken ab = {.content = "ab", .id = 1};
  const AddedToken bcd = {.content = "bcd", .id = 3};
  EXPECT_EQ(split({ab, bcd}, "abcd"), (Strings{"#1", "cd"}));
  EXPECT_EQ(split({ab}, "aab"), (Strings{"a", "#1"}));
  EXPECT_EQ(split({ab}, ""), Strings{});
  EXPECT_EQ(split({}, "text"), Strings{"text"});
}

TEST(AddedTokens, SingleWord) {
  const AddedToken mask = {.content = "<mask>", .id = 0, .single_word = true};
  EXPECT_EQ(split({mask}, "<mask> My name <mask> A<mask> <mask>ony <mask>"),
            (Strings{"#0", " My name ", "#0", " A<mask> <mask>ony ", "#0"}));
  // Punctuation is no word, a combining mark is.
  EXPECT_EQ(split({mask}, "<mask>, <mask>- ◌̰<mask>"), (Strings{"#0", ", ", "#0", "- ◌̰<mask>"}));
}

TEST(AddedTokens, StripsWhiteSpaceAround) {
  const AddedToken mask = {
      .content = "<mask>", .id = 0, .single_word = true, .lstrip = true, .rstrip = true};
  EXPECT_EQ(split({mask}, "Hi <mask> there\t<mask>\t<mask>\u2000"),
            (Strings{"Hi", "#0", "there", "#0", "#0"}));
  const AddedToken left = {.content = "x", .id = 1, .lstrip = true};
  EXPECT_EQ(split({left}, "a  x  b"), (Strings{"a", "#1", "  b"}));
  const AddedToken right = {.content = "x", .id = 1, .rstrip = true};
  EXPECT_EQ(split({right}, "a  x  b"), (Strings{"a  ", "#1", "b"}));
}

TEST(AddedTokens, NormalizedTokensAreFoundInTheirNormalForm) {
  const Json nfc = Json::parse(R"({"type": "NFC"})");
  const std::vector<AddedToken> tokens = {
      {.content = "e\u0301", .id = 1, .normalized = true, .special = false},
      {.content = "<s>", .id = 2, .special = true}};
  const AddedTokens added(tokens, Vocabulary(), Normalizer::parse(JsonView(nfc, "test")), "test");
  std::vector<Segment> segments;
  added.normalized().split("é<s>", segments);
  ASSERT_EQ(segments.size(), 2u);
  EXPECT_EQ(segments[0].id, 1);
  EXPECT_EQ(segments[1].text, "<s>");
  added.raw().split("é<s>", segments);
  ASSERT_EQ(segments.size(), 2u);
  EXPECT_EQ(segments[0].text, "é");
  EXPECT_EQ(segments[1].id, 2);
  EXPECT_TRUE(added.is_special(2));
  EXPECT_FALSE(added.is_special(1));
}

}  // namespace
}  // namespace dofla
