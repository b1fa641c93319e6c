#include "dofla/checkpoint/tokenizer/token_decoder.h"

#include <initializer_list>

#include <gtest/gtest.h>

namespace dofla {
namespace {

// What each token gives, then what the end gives.
std::vector<std::string> steps(const char* json, std::initializer_list<const char*> tokens) {
  const Json parsed = Json::parse(json);
  const TokenDecoder decoder = TokenDecoder::parse(JsonView(parsed, "test"));
  TextDecodeState state;
  std::vector<std::string> out;
  for (const char* token : tokens) decoder.next(token, state, out.emplace_back());
  decoder.finish(state, out.emplace_back());
  return out;
}

using Strings = std::vector<std::string>;

constexpr const char* kLlama = R"({"type": "Sequence", "decoders": [
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
    {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})";

TEST(TokenDecoder, StripsTheStartOfTheTextOnce) {
  EXPECT_EQ(steps(kLlama, {"▁a", "▁a"}), (Strings{"a", " a", ""}));
  EXPECT_EQ(steps(kLlama, {"▁", "▁a"}), (Strings{"", " a", ""}));
  EXPECT_EQ(steps(kLlama, {"▁▁", "a"}), (Strings{" ", "a", ""}));
  EXPECT_EQ(steps(kLlama, {"a", "▁a"}), (Strings{"a", " a", ""}));
  EXPECT_EQ(steps(kLlama, {"<0x20>", "a"}), (Strings{"", "a", ""}));
}

TEST(TokenDecoder, ByteFallbackReadsARunOfBytesAsAWhole) {
  EXPECT_EQ(steps(kLlama, {"<0xC3>", "<0xA9>", "a"}), (Strings{"", "", "éa", ""}));
  EXPECT_EQ(steps(kLlama, {"<0xC3>", "<0xA9>"}), (Strings{"", "", "é"}));
  EXPECT_EQ(steps(kLlama, {"<0x61>", "<0xC3>", "a"}), (Strings{"", "", "\uFFFD\uFFFDa", ""}));
  EXPECT_EQ(steps(kLlama, {"<0xG1>", "<0x1>"}), (Strings{"<0xG1>", "<0x1>", ""}));
}

TEST(TokenDecoder, StripBeforeFuseConcernsEachToken) {
  constexpr const char* kStrip = R"({"type": "Strip", "content": "_", "start": 2, "stop": 1})";
  EXPECT_EQ(steps(kStrip, {"___a__", "_", ""}), (Strings{"_a_", "", "", ""}));
}

TEST(TokenDecoder, ByteLevelHoldsBackIncompleteCharacters) {
  constexpr const char* kBytes = R"({"type": "ByteLevel"})";
  EXPECT_EQ(steps(kBytes, {"Ġa", "Ã", "©", "Ã", "a", "Ã"}),
            (Strings{" a", "", "é", "", "\uFFFDa", "", "\uFFFD"}));
}

}  // namespace
}  // namespace dofla
