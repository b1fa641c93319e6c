#include "dofla/checkpoint/tokenizer/bpe.h"

#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dofla/core/random.h"

namespace dofla {
namespace {

using Ids = std::vector<int64_t>;

// The definition, word for word: while some neighbours merge, merge the pair of lowest rank that
// stands leftmost.
std::vector<std::string> merged_by_definition(
    std::string_view word, const std::map<std::pair<std::string, std::string>, size_t>& ranks) {
  std::vector<std::string> parts;
  for (const char c : word) parts.emplace_back(1, c);
  while (true) {
    size_t best = parts.size();
    size_t best_rank = ranks.size();
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto rank = ranks.find({parts[i], parts[i + 1]});
      if (rank == ranks.end() || rank->second >= best_rank) continue;
      best = i;
      best_rank = rank->second;
    }
    if (best == parts.size()) return parts;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
}

TEST(Bpe, EqualsTheDefinitionOnRandomMergesAndWordsOfAllLengths) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    Random random(seed);
    std::vector<std::string> pieces = {"a", "b", "c"};
    Vocabulary vocabulary;
    for (const std::string& piece : pieces) vocabulary.add(piece, vocabulary.size(), "test");
    MergeList merges;
    std::map<std::pair<std::string, std::string>, size_t> ranks;
    for (int i = 0; i < 40; ++i) {
      const std::string left = pieces[random.below(pieces.size())];
      const std::string right = pieces[random.below(pieces.size())];
      if (!ranks.try_emplace({left, right}, merges.size()).second) continue;
      merges.add(left, right);
      if (vocabulary.find(left + right)) continue;  // another way to the same token
      pieces.push_back(left + right);
      vocabulary.add(pieces.back(), vocabulary.size(), "test");
    }
    const Bpe bpe(vocabulary, merges, {}, "test");
    Bpe::Scratch scratch;
    for (const size_t length : {0, 1, 2, 3, 10, 47, 48, 49, 50, 100, 300}) {
      std::string word;
      for (size_t i = 0; i < length; ++i) word.push_back("abc"[random.below(3)]);
      Ids expected;
      for (const std::string& part : merged_by_definition(word, ranks))
        expected.push_back(*vocabulary.find(part));
      Ids found;
      bpe.encode(word, scratch, found);
      ASSERT_EQ(found, expected) << word;
    }
  }
}

TEST(Bpe, OfAPairGivenTwiceTheLastRankCounts) {
  Vocabulary vocabulary;
  for (const char* token : {"a", "b", "c", "ab", "bc"})
    vocabulary.add(token, vocabulary.size(), "test");
  MergeList merges;
  for (const char* line : {"a b", "b c", "a b"}) ASSERT_TRUE(merges.add_line(line));
  Bpe::Scratch scratch;
  Ids ids;
  Bpe(vocabulary, merges, {}, "test").encode("abc", scratch, ids);
  EXPECT_EQ(ids, (Ids{0, 4}));
}

TEST(Bpe, ByteFallbackNeedsAllBytesOfACharacter) {
  Vocabulary vocabulary;
  for (const char* token : {"?", "<0xC3>", "<0xA9>"})
    vocabulary.add(token, vocabulary.size(), "test");
  BpeSettings settings;
  settings.unknown = "?";
  settings.byte_fallback = true;
  Bpe::Scratch scratch;
  Ids ids;
  Bpe(vocabulary, {}, settings, "test").encode("éè", scratch, ids);  // C3 A9, C3 A8
  EXPECT_EQ(ids, (Ids{1, 2, 0}));
}

TEST(Bpe, MayCutBeforeAMarkOnlyIfNoMergeJoinsAcrossIt) {
  Vocabulary vocabulary;
  for (const char* token : {"a", "▁", "▁▁", "▁a", "a▁"})
    vocabulary.add(token, vocabulary.size(), "test");
  const auto may_cut = [&](std::initializer_list<const char*> lines, BpeSettings settings = {}) {
    MergeList merges;
    for (const char* line : lines) merges.add_line(line);
    return Bpe(vocabulary, merges, settings, "test").may_cut_before("▁");
  };
  EXPECT_TRUE(may_cut({}));
  EXPECT_TRUE(may_cut({"▁ ▁", "▁ a"}));
  EXPECT_FALSE(may_cut({"▁ ▁", "a ▁"}));
  EXPECT_FALSE(may_cut({"▁ ▁", "▁ a"}, {.unknown = {}, .ignore_merges = true}));
  EXPECT_FALSE(Bpe(vocabulary, {}, {}, "test").may_cut_before("_"));  // not even a token
}

}  // namespace
}  // namespace dofla
