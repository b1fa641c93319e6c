// Small tokenizers in the layouts of real families, with the tokens that they must give.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dofla/checkpoint/tokenizer.h"
#include "dofla/checkpoint/tokenizer/byte_level.h"
#include "dofla/checkpoint/tokenizer/word_patterns.h"
#include "dofla/core/json.h"
#include "tests/support/tokens.h"

namespace dofla {
namespace {

using Ids = std::vector<int64_t>;
using Strings = std::vector<std::string>;

// All 256 bytes, then one token for each merge.
Json byte_level_model(const std::vector<std::pair<std::string, std::string>>& merges) {
  Json model = {{"type", "BPE"}, {"vocab", Json::object()}, {"merges", Json::array()}};
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    std::string token;
    append_byte_characters({&c, 1}, token);
    model["vocab"][token] = byte;
  }
  for (const auto& [left, right] : merges) {
    model["vocab"][left + right] = model["vocab"].size();
    model["merges"].push_back({left, right});
  }
  return model;
}

Json split_then_bytes(std::string_view regex) {
  const Json split = {{"type", "Split"},
                      {"pattern", {{"Regex", regex}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  const Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  return {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}};
}

Json added(std::string_view content, int64_t id, bool special = true) {
  return {{"content", content}, {"id", id}, {"special", special}, {"normalized", !special}};
}

Json llama3() {
  Json json;
  json["model"] = byte_level_model({{"h", "e"}, {"Ġ", "he"}, {"1", "2"}, {"12", "3"}, {"3", "4"}});
  json["model"]["vocab"]["hello"] = 300;  // no merge leads here
  json["model"]["ignore_merges"] = true;
  json["added_tokens"] = {added("<|begin_of_text|>", 400), added("<|eot_id|>", 401)};
  json["pre_tokenizer"] = split_then_bytes(kLlama3Pattern);
  const Json begin = {{"SpecialToken", {{"id", "<|begin_of_text|>"}, {"type_id", 0}}}};
  const Json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const Json wrap = {{"type", "TemplateProcessing"},
                     {"single", {begin, text}},
                     {"special_tokens", {{"<|begin_of_text|>", {{"ids", {400}}}}}}};
  json["post_processor"] = {{"type", "Sequence"}, {"processors", {{{"type", "ByteLevel"}}, wrap}}};
  json["decoder"] = {{"type", "ByteLevel"}};
  return json;
}

TEST(TokenizerLayout, Llama3) {
  const Tokenizer tokenizer = Tokenizer::parse(llama3().dump(), "test");
  EXPECT_EQ(test::tokens(tokenizer, "hello he 12345\n\nHE'LL<|eot_id|>"),
            (Strings{"<|begin_of_text|>", "hello", "Ġhe", "Ġ", "123", "4", "5", "Ċ", "Ċ", "H", "E",
                     "'", "L", "L", "<|eot_id|>"}));
  EXPECT_EQ(tokenizer.encode("he", false), Ids{*tokenizer.token_id("he")});
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("hello he\n"), true), "hello he\n");
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("hello")), "<|begin_of_text|>hello");
  EXPECT_EQ(tokenizer.vocabulary(), 402);
}

TEST(TokenizerLayout, Llama3WithoutIgnoreMerges) {
  Json json = llama3();
  json["model"]["ignore_merges"] = false;
  const Tokenizer tokenizer = Tokenizer::parse(json.dump(), "test");
  EXPECT_EQ(test::tokens(tokenizer, "hello"), (Strings{"<|begin_of_text|>", "he", "l", "l", "o"}));
}

TEST(TokenizerLayout, Qwen2) {
  Json json;
  json["model"] = byte_level_model({{"1", "2"}, {"Ã", "©"}});
  json["normalizer"] = {{"type", "NFC"}};
  json["added_tokens"] = {added("<|im_start|>", 500), added("<tool>", 501, false)};
  json["pre_tokenizer"] = split_then_bytes(kQwen2Pattern);
  json["decoder"] = {{"type", "ByteLevel"}};
  const Tokenizer tokenizer = Tokenizer::parse(json.dump(), "test");
  // Digits stand alone, whatever the merges say; NFC joins the accent with its letter.
  EXPECT_EQ(test::tokens(tokenizer, "<|im_start|>12e\u0301<tool>"),
            (Strings{"<|im_start|>", "1", "2", "Ã©", "<tool>"}));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("<|im_start|>a<tool>"), true), "a<tool>");
}

TEST(TokenizerLayout, AnotherExpressionGoesToTheEngine) {
  Json json;
  json["model"] = byte_level_model({{"a", "a"}, {"1", "1"}});
  json["pre_tokenizer"] = split_then_bytes(R"(\p{Ll}{1,3}|\p{N}++)");
  json["decoder"] = {{"type", "ByteLevel"}};
  const Tokenizer tokenizer = Tokenizer::parse(json.dump(), "test");
  EXPECT_EQ(test::tokens(tokenizer, "aaaa--1111"), (Strings{"aa", "a", "a", "-", "-", "11", "11"}));
}

TEST(TokenizerLayout, SplitRemovesMatchesOrGaps) {
  Json json;
  json["model"] = byte_level_model({});
  json["pre_tokenizer"] = split_then_bytes("-");
  json["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"String", "-"}};
  json["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed";
  EXPECT_EQ(test::tokens(Tokenizer::parse(json.dump(), "test"), "a-b"), (Strings{"a", "b"}));
  json["pre_tokenizer"]["pretokenizers"][0]["invert"] = true;
  EXPECT_EQ(test::tokens(Tokenizer::parse(json.dump(), "test"), "a-b"), (Strings{"-"}));
}

TEST(TokenizerLayout, DigitsBeforeByteLevel) {
  Json json;
  json["model"] = byte_level_model({{"1", "2"}, {"a", "b"}});
  const Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  Json digits = {{"type", "Digits"}, {"individual_digits", true}};
  json["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {digits, bytes}}};
  EXPECT_EQ(test::tokens(Tokenizer::parse(json.dump(), "test"), "ab12"), (Strings{"ab", "1", "2"}));
  json["pre_tokenizer"]["pretokenizers"][0]["individual_digits"] = false;
  EXPECT_EQ(test::tokens(Tokenizer::parse(json.dump(), "test"), "ab12"), (Strings{"ab", "12"}));
}

TEST(TokenizerLayout, PrefixSpaceIsGivenToEachStretch) {
  Json json;
  json["model"] = byte_level_model({{"Ġ", "a"}});
  json["added_tokens"] = Json::array({added("<s>", 300)});
  json["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", true}};
  const Tokenizer tokenizer = Tokenizer::parse(json.dump(), "test");
  EXPECT_EQ(test::tokens(tokenizer, "a<s>a<s> a"), (Strings{"Ġa", "<s>", "Ġa", "<s>", "Ġa"}));
  EXPECT_EQ(test::tokens(tokenizer, ""), Strings{});
}

Json metaspace(std::string_view scheme, bool split) {
  Json json;
  json["model"] = {{"type", "BPE"},
                   {"vocab", {{"▁", 0}, {"a", 1}, {"▁a", 2}, {"▁▁", 3}, {"<unk>", 4}, {"a▁", 5}}},
                   {"merges", {"▁ a", "▁ ▁"}},
                   {"unk_token", "<unk>"},
                   {"fuse_unk", true}};
  json["added_tokens"] = Json::array({added("<s>", 6)});
  json["pre_tokenizer"] = {
      {"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", scheme}, {"split", split}};
  return json;
}

TEST(TokenizerLayout, Metaspace) {
  const auto under = [](std::string_view scheme, bool split, std::string_view text) {
    return test::tokens(Tokenizer::parse(metaspace(scheme, split).dump(), "test"), text);
  };
  EXPECT_EQ(under("first", false, "a<s>a"), (Strings{"▁a", "<s>", "a"}));
  EXPECT_EQ(under("always", false, "a<s>a"), (Strings{"▁a", "<s>", "▁a"}));
  EXPECT_EQ(under("never", false, "a a"), (Strings{"a", "▁a"}));
  EXPECT_EQ(under("never", false, "a  a"), (Strings{"a", "▁", "▁a"}));
  EXPECT_EQ(under("never", false, "a  b"), (Strings{"a", "▁▁", "<unk>"}));
  EXPECT_EQ(under("never", true, "a  b"), (Strings{"a", "▁", "▁", "<unk>"}));
}

TEST(TokenizerLayout, AMergeAcrossASpaceMarkKeepsTheTextWhole) {
  Json json = metaspace("never", false);
  json["model"]["merges"] = {"a ▁", "▁ a"};
  EXPECT_EQ(test::tokens(Tokenizer::parse(json.dump(), "test"), "a a"), (Strings{"a▁", "a"}));
}

TEST(TokenizerLayout, UnknownCharacters) {
  Json json = metaspace("never", false);
  EXPECT_EQ(test::tokens(Tokenizer::parse(json.dump(), "test"), "axyza"),
            (Strings{"a", "<unk>", "a"}));
  json["model"]["fuse_unk"] = false;
  EXPECT_EQ(test::tokens(Tokenizer::parse(json.dump(), "test"), "axya"),
            (Strings{"a", "<unk>", "<unk>", "a"}));
  json["model"]["unk_token"] = nullptr;
  EXPECT_EQ(test::tokens(Tokenizer::parse(json.dump(), "test"), "axya"), (Strings{"a", "a"}));
}

TEST(TokenizerLayout, WithoutADecoderTokensAreJoinedBySpaces) {
  const Tokenizer tokenizer = Tokenizer::parse(metaspace("never", false).dump(), "test");
  EXPECT_EQ(tokenizer.decode(Ids{1, 2, 1}), "a ▁a a");
  StreamDecoder stream(tokenizer);
  EXPECT_EQ(stream.next(1), "a");
  EXPECT_EQ(stream.next(2), " ▁a");
  EXPECT_EQ(stream.finish(), "");
  EXPECT_EQ(stream.next(1), "a");
}

}  // namespace
}  // namespace dofla
