#include "dofla/checkpoint/tokenizer/pattern.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

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

TEST(Pattern, ExponentialWorkIsRefused) {
  const std::string letters(8000, 'a');
  for (const char* hostile : {"(?:a|a){22}[bc]", "(?:a|aa)+[bc]", "(?:a*)*[bc]", "a*a*a*a*[bc]"})
    test::expect_error([&] { Pattern::regex(hostile, "file").matches(letters); },
                       {"file: regular expression", "too much work", "8000 bytes"});
}

TEST(Pattern, QuadraticWorkIsRefused) {
  const std::string letters(2'000'000, 'a');
  test::expect_error([&] { Pattern::regex("a+[bc]", "file").matches(letters); },
                     {"file: regular expression", "too much work", "2000000 bytes"});
}

// Runs that take more steps, and reach further, than a place of the text has of its own.
TEST(Pattern, LongRunsAreFound) {
  const Pattern words = Pattern::regex(R"(\p{Lu}*\p{Ll}+|\p{Lu}+|\s+(?!\S)|\s+)", "test");
  const std::string run(500'000, 'A'), spaces(300'000, ' ');
  const size_t size = run.size();
  EXPECT_EQ(words.matches(run + "b " + run),
            (Matches{{0, size + 1}, {size + 1, size + 2}, {size + 2, 2 * size + 2}}));
  EXPECT_EQ(words.matches(spaces + "ab"), (Matches{{0, spaces.size() - 1},
                                                   {spaces.size() - 1, spaces.size()},
                                                   {spaces.size(), spaces.size() + 2}}));
  EXPECT_EQ(words.matches(spaces), (Matches{{0, spaces.size()}}));
}

TEST(Pattern, MatchesAfterAPlaceThatTookManyStepsInVain) {
  const Pattern pattern = Pattern::regex("A{2000}(?:A|A){11}[bc]|AbA", "test");
  EXPECT_EQ(pattern.matches(std::string(2012, 'A') + "dAbA"), (Matches{{2013, 2016}}));
}

// Text longer than a window: the same matches as in the pieces that it is made of, wherever the
// windows end.
TEST(Pattern, LongTextsAreSearchedToTheEnd) {
  const std::string piece = "one 二二, three\u00e9\n\n 45";
  for (const char* source :
       {R"(\p{L}+)", R"(\s+(?!\S)|\s+)", R"(\p{N}{1,3})", R"(45(?=one))", "x*"}) {
    const Pattern pattern = Pattern::regex(source, "test");
    std::string text;
    for (int i = 0; i < 6; ++i) text += piece;
    const Matches few = pattern.matches(text);
    const size_t a_piece = (few.size() - pattern.matches(text.substr(piece.size())).size());
    constexpr size_t kPieces = 9000;  // some 240 kB
    text.clear();
    for (size_t i = 0; i < kPieces; ++i) text += piece;
    EXPECT_EQ(pattern.matches(text).size(), few.size() + (kPieces - 6) * a_piece) << source;
  }
}

}  // namespace
}  // namespace dofla
