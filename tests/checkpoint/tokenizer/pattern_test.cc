#include "dofla/checkpoint/tokenizer/pattern.h"

#include <gtest/gtest.h>

namespace dofla {
namespace {

using Matches = std::vector<Pattern::Match>;

TEST(Pattern, FindsLiteralsWithoutOverlap) {
  EXPECT_EQ(Pattern::literal("aa", "test").matches("aaaaa"), (Matches{{0, 2}, {2, 4}}));
  EXPECT_EQ(Pattern::literal(".", "test").matches("a.b"), (Matches{{1, 2}}));
  EXPECT_EQ(Pattern::literal("x", "test").matches(""), Matches{});
}

TEST(Pattern, FindsUnicodeClasses) {
  EXPECT_EQ(Pattern::regex(R"(\p{L}+)", "test").matches("é1二"), (Matches{{0, 2}, {3, 6}}));
  EXPECT_EQ(Pattern::regex(R"(\s)", "test").matches("a\u3000b"), (Matches{{1, 4}}));
  EXPECT_EQ(Pattern::regex(R"((?i:'s))", "test").matches("'S 's"), (Matches{{0, 2}, {3, 5}}));
}

TEST(Pattern, EmptyMatchesStandBetweenCharacters) {
  EXPECT_EQ(Pattern::regex(R"((?=b))", "test").matches("abéb"), (Matches{{1, 1}, {4, 4}}));
  EXPECT_EQ(Pattern::regex("a*", "test").matches("baa"), (Matches{{0, 0}, {1, 3}}));
}

TEST(Pattern, LinesHaveStartsAndEnds) {  // as in Oniguruma
  EXPECT_EQ(Pattern::regex("^a", "test").matches("a\na"), (Matches{{0, 1}, {2, 3}}));
}

TEST(Pattern, AcceptsBracketsInsideSets) {
  EXPECT_EQ(Pattern::regex(R"([]\[(*])", "test").matches("a(*]["),
            (Matches{{1, 2}, {2, 3}, {3, 4}, {4, 5}}));
}

}  // namespace
}  // namespace dofla
