#include "dofla/checkpoint/tokenizer/word_cache.h"

#include <set>
#include <string>

#include <gtest/gtest.h>

namespace dofla {
namespace {

using Ids = std::vector<int64_t>;

TEST(WordCache, GivesBackWhatItWasToldAndNothingElse) {
  WordCache cache;
  Ids found;
  for (size_t length = 1; length <= 40; ++length) {
    const std::string word(length, 'a');
    const uint64_t hash = hash_bytes(word);
    EXPECT_FALSE(cache.append(word, hash, found));
    cache.remember(word, hash, Ids{1, static_cast<int64_t>(length)});
    found = {7};
    const bool kept = cache.append(word, hash, found);
    EXPECT_EQ(kept, length <= 30);
    EXPECT_EQ(found, kept ? (Ids{7, 1, static_cast<int64_t>(length)}) : Ids{7});
    for (size_t i = 0; i < length; ++i) {  // the same slot, another word
      std::string other = word;
      other[i] = 'b';
      EXPECT_FALSE(cache.append(other, hash, found));
    }
  }
  cache.remember("many", hash_bytes("many"), Ids(9, 1));
  EXPECT_FALSE(cache.append("many", hash_bytes("many"), found));
}

TEST(WordCache, HashSeesEveryByte) {
  for (size_t length = 1; length <= 40; ++length) {
    std::set<uint64_t> seen = {hash_bytes(std::string(length, 'a'))};
    for (size_t i = 0; i < length; ++i) {
      std::string word(length, 'a');
      word[i] = 'b';
      EXPECT_TRUE(seen.insert(hash_bytes(word)).second) << length << " " << i;
    }
  }
}

}  // namespace
}  // namespace dofla
