#include "dofla/checkpoint/tokenizer.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dofla/checkpoint/tokenizer/tokenizer_file.h"
#include "dofla/core/error.h"
#include "dofla/core/json.h"
#include "dofla/core/parallel.h"
#include "tests/checkpoint/tokenizer/random_text.h"
#include "tests/support/fixtures.h"
#include "tests/support/tokens.h"

namespace dofla {
namespace {

using Ids = std::vector<int64_t>;
using Strings = std::vector<std::string>;

fs::path source_folder() {
  return DOFLA_SOURCE_DIR;
}

std::string streamed(const Tokenizer& tokenizer, const Ids& ids, bool skip_special = false) {
  StreamDecoder decoder(tokenizer, skip_special);
  std::string out;
  for (const int64_t id : ids) out += decoder.next(id);
  return out + decoder.finish();
}

// Every case that the fixtures hold, for every tokenizer that they name.
TEST(Tokenizer, EqualsHuggingFaceOnTheFixtures) {
  const Json cases = load_json(test::fixtures() / "tokenizer_cases.json");
  ASSERT_FALSE(cases.empty());
  for (const auto& [name, list] : cases.items()) {
    const Tokenizer tokenizer = Tokenizer::load(source_folder() / "tests/tokenizers" / name);
    ASSERT_FALSE(list.empty());
    for (const Json& one : list) {
      const auto text = one.at("text").get<std::string>();
      const auto ids = one.at("ids").get<Ids>();
      EXPECT_EQ(tokenizer.encode(text), ids) << name << ": " << text;
      EXPECT_EQ(tokenizer.decode(ids), one.at("decoded").get<std::string>()) << name;
      EXPECT_EQ(streamed(tokenizer, ids), one.at("decoded").get<std::string>()) << name;
    }
  }
}

struct RealFolder {
  const char* path;
  bool lossless;  // no normalizer: decoding gives the text back to the byte
};

class RealTokenizer : public testing::TestWithParam<RealFolder> {
 protected:
  Tokenizer tokenizer = Tokenizer::load(source_folder() / GetParam().path);
};

TEST_P(RealTokenizer, GivesTextBackAndStreamsIt) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    Random random(seed);
    const std::string text = test::random_text(random, 1 + static_cast<int>(random.below(40)));
    const Ids ids = tokenizer.encode(text, /*add_special=*/false);
    const std::string decoded = tokenizer.decode(ids);
    if (GetParam().lossless) {
      EXPECT_EQ(decoded, text);
    }
    EXPECT_EQ(tokenizer.encode(decoded, false), ids);
    EXPECT_EQ(streamed(tokenizer, ids), decoded);
    for (const int64_t id : ids) EXPECT_LT(id, tokenizer.vocabulary());
  }
}

TEST_P(RealTokenizer, StreamsArbitraryIdsAsItDecodesThem) {
  Random random(1);
  for (int round = 0; round < 500; ++round) {
    Ids ids;
    for (uint64_t i = random.below(12); i > 0; --i)
      ids.push_back(
          static_cast<int64_t>(random.below(static_cast<uint64_t>(tokenizer.vocabulary()) + 3)));
    for (const bool skip : {false, true})
      EXPECT_EQ(streamed(tokenizer, ids, skip), tokenizer.decode(ids, skip));
  }
}

TEST_P(RealTokenizer, TakesALongWordInStride) {  // minutes, were the merges quadratic
  const std::string text(1 << 20, 'a');
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, false)), text);
}

TEST_P(RealTokenizer, ServesManyThreads) {
  std::vector<std::string> texts;
  std::vector<Ids> expected;
  for (uint64_t seed = 0; seed < 64; ++seed) {
    Random random(seed);
    texts.push_back(test::random_text(random, 200));
    expected.push_back(tokenizer.encode(texts.back()));
  }
  std::vector<Ids> found(texts.size());
  parallel_for(static_cast<int64_t>(texts.size()), [&](int64_t i) {
    found[static_cast<size_t>(i)] = tokenizer.encode(texts[static_cast<size_t>(i)]);
  });
  EXPECT_EQ(found, expected);
}

TEST_P(RealTokenizer, ReadsBrokenUtf8AsReplacementCharacters) {
  EXPECT_EQ(tokenizer.encode("a\xFF\xE2\x82z"), tokenizer.encode("a\uFFFD\uFFFDz"));
}

TEST_P(RealTokenizer, SkipsIdsThatNoTokenHas) {
  Ids ids = tokenizer.encode("one two", false);
  ids.insert(ids.begin() + 1, {tokenizer.vocabulary(), int64_t{1} << 60, -1});
  EXPECT_EQ(tokenizer.decode(ids), "one two");
}

std::string folder_name(const testing::TestParamInfo<RealFolder>& instance) {
  std::string name = fs::path(instance.param.path).filename().string();
  std::erase_if(name, [](char c) { return c == '_' || c == '-'; });
  return name;
}

INSTANTIATE_TEST_SUITE_P(Folders, RealTokenizer,
                         testing::Values(RealFolder{"tests/tokenizers/gpt2", true},
                                         RealFolder{"tests/tokenizers/gpt_neox", false},
                                         RealFolder{"tests/models/stories260K", false},
                                         RealFolder{"assets/wiki-mini", true}),
                         folder_name);

TEST(Tokenizer, KnowsItsTokens) {
  const Tokenizer gpt2 = Tokenizer::load(source_folder() / "tests/tokenizers/gpt2");
  EXPECT_EQ(gpt2.vocabulary(), 50257);
  EXPECT_EQ(gpt2.token_id("<|endoftext|>"), 50256);
  EXPECT_EQ(gpt2.token_id("Ġthe"), 262);
  EXPECT_EQ(gpt2.token(262), "Ġthe");
  EXPECT_EQ(gpt2.token_id(" the"), std::nullopt);
  EXPECT_EQ(gpt2.token(50257), std::nullopt);
  EXPECT_TRUE(gpt2.is_special(50256));
  EXPECT_FALSE(gpt2.is_special(262));
  EXPECT_EQ(gpt2.decode(Ids{64, 50256, 65}, /*skip_special=*/true), "ab");

  const Tokenizer neox = Tokenizer::load(source_folder() / "tests/tokenizers/gpt_neox");
  EXPECT_EQ(neox.vocabulary(), 50277);  // 50254 in the model, the runs of spaces added
  EXPECT_EQ(neox.token_id("  "), 50276);
}

TEST(Tokenizer, HoldsBackIncompleteCharacters) {
  const Tokenizer gpt2 = Tokenizer::load(source_folder() / "tests/tokenizers/gpt2");
  const Ids ids = gpt2.encode("🙂");
  ASSERT_GT(ids.size(), 1u);
  StreamDecoder decoder(gpt2);
  for (size_t i = 0; i + 1 < ids.size(); ++i) EXPECT_EQ(decoder.next(ids[i]), "");
  EXPECT_EQ(decoder.next(ids.back()), "🙂");
  EXPECT_EQ(decoder.next(ids.front()), "");
  EXPECT_EQ(decoder.finish(), "\uFFFD");  // never completed
  EXPECT_EQ(decoder.finish(), "");
}

TEST(Tokenizer, SentencePieceStyle) {
  const Tokenizer stories = Tokenizer::load(source_folder() / "tests/models/stories260K");
  EXPECT_EQ(test::tokens(stories, "the"), (Strings{"<s>", "▁the"}));
  EXPECT_EQ(test::tokens(stories, "é二"), (Strings{"<s>", "▁", "é", "<0xE4>", "<0xBA>", "<0x8C>"}));
  // The normalizer's leading space is given to each stretch between special tokens.
  EXPECT_EQ(test::tokens(stories, "a</s>a"), (Strings{"<s>", "▁a", "</s>", "▁a"}));
  // Only the space that the normalizer put before the text is taken away again.
  EXPECT_EQ(stories.decode(stories.encode("  x", false)), "  x");
  EXPECT_EQ(stories.encode(""), Ids{1});
  EXPECT_EQ(stories.encode("", false), Ids{});

  StreamDecoder decoder(stories);
  std::string first = decoder.next(*stories.token_id("▁the"));
  EXPECT_EQ(first, "the");
  EXPECT_EQ(decoder.next(*stories.token_id("▁the")), " the");
  EXPECT_EQ(decoder.next(*stories.token_id("<0xC3>")), "");
  EXPECT_EQ(decoder.next(*stories.token_id("▁the")), "\uFFFD the");
}

// Cutting a text before its space marks is ours; Hugging Face gives the whole text to BPE.
TEST(Tokenizer, SentencePieceTextAsOneWordGivesTheSameTokens) {
  const fs::path folder = source_folder() / "tests/models/stories260K";
  const Tokenizer stories = Tokenizer::load(folder);
  TokenizerFile file = read_tokenizer_file(read_text(folder / "tokenizer.json"), "test");
  const Bpe bpe(std::move(file.vocabulary), file.merges, {"<unk>", true, true, false}, "test");
  ASSERT_TRUE(bpe.may_cut_before("▁"));
  Bpe::Scratch scratch;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Random random(seed);
    const std::string text = test::random_text(random, 60);
    std::string word = "▁";
    for (const char c : text) word += c == ' ' ? std::string("▁") : std::string(1, c);
    Ids whole;
    bpe.encode(word, scratch, whole);
    ASSERT_EQ(stories.encode(text, false), whole) << text;
  }
}

TEST(Tokenizer, OlderFormEqualsTokenizerJson) {
  const fs::path folder = source_folder() / "tests/tokenizers/gpt2";
  const Json json = load_json(folder / "tokenizer.json");
  const test::ScratchFolder scratch;
  write_whole(scratch.path() / "vocab.json", json.at("model").at("vocab").dump());
  std::string merges = "#version: 0.2\n";
  for (const Json& pair : json.at("model").at("merges"))
    merges += pair.at(0).get<std::string>() + " " + pair.at(1).get<std::string>() + "\n";
  write_whole(scratch.path() / "merges.txt", merges);

  const Tokenizer older = Tokenizer::load(scratch.path());
  const Tokenizer newer = Tokenizer::load(folder);
  EXPECT_EQ(older.vocabulary(), newer.vocabulary());
  EXPECT_TRUE(older.is_special(50256));
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Random random(seed);
    const std::string text = test::random_text(random, 50) + "<|endoftext|>";
    const Ids ids = newer.encode(text);
    EXPECT_EQ(older.encode(text), ids);
    EXPECT_EQ(older.decode(ids, true), newer.decode(ids, true));
  }

  write_whole(scratch.path() / "tokenizer_config.json",
              R"({"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": true})");
  EXPECT_EQ(Tokenizer::load(scratch.path()).encode("the"), newer.encode(" the"));
}

}  // namespace
}  // namespace dofla
