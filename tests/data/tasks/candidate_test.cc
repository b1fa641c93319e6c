#include "dofla/data/tasks/candidate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace dofla {
namespace {

using testing::ElementsAre;

// A tokenizer to count by: every byte is a token, and a space joins the letter behind it.
TokenIds encode(std::string_view text) {
  TokenIds ids;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool joins = text[i] == ' ' && i + 1 < text.size() && text[i + 1] != ' ';
    ids.push_back(joins ? 128 + text[++i] : text[i] & 0x7f);
  }
  return ids;
}

constexpr int64_t space_a = 128 + 'a', space_b = 128 + 'b';

class Candidates : public testing::Test {
 protected:
  Candidates() {
    config.vocabulary = 256;
    config.context = 100;
    config.end_of_text = 7;
  }
  Candidate first(const std::string& context, const std::string& continuation) const {
    return encode_question({{context}, {continuation, "b"}, 0}, encode, config).candidates[0];
  }
  ModelConfig config;
};

TEST_F(Candidates, ASpaceStandsBeforeTheContinuation) {
  const EncodedQuestion question = encode_question({{"xy"}, {"a", "bc"}, 1}, encode, config);
  ASSERT_EQ(question.candidates.size(), 2u);
  EXPECT_THAT(question.candidates[0].ids, ElementsAre('x', 'y', space_a));
  EXPECT_THAT(question.candidates[1].ids, ElementsAre('x', 'y', space_b, 'c'));
  EXPECT_EQ(question.candidates[0].scored_from, 2);
  EXPECT_EQ(question.candidates[1].scored_from, 2);
  EXPECT_EQ(question.candidates[1].characters, 2) << "without the space";
  EXPECT_EQ(question.gold, 1);
  EXPECT_FALSE(question.truncated);
}

TEST_F(Candidates, SpacesAtTheContextsEndAreScored) {
  const Candidate candidate = first("xy \n", "a");
  EXPECT_THAT(candidate.ids, ElementsAre('x', 'y', 128 + '\n', space_a));
  EXPECT_EQ(candidate.scored_from, 2);
}

TEST_F(Candidates, ContextsMayDifferInsteadOfContinuations) {
  const EncodedQuestion question = encode_question({{"xa", "xbc"}, {"a"}, 0}, encode, config);
  EXPECT_THAT(question.candidates[0].ids, ElementsAre('x', 'a', space_a));
  EXPECT_THAT(question.candidates[1].ids, ElementsAre('x', 'b', 'c', space_a));
  EXPECT_EQ(question.candidates[1].scored_from, 3);
  EXPECT_EQ(shared_tokens(question), 1);
}

TEST_F(Candidates, WithoutContextATextBegins) {
  EXPECT_THAT(first("", "a").ids, ElementsAre(7, space_a));
  EXPECT_EQ(first("", "a").scored_from, 1);
  EXPECT_THAT(first("  ", "a").ids, ElementsAre(7, ' ', ' ', space_a)) << "spaces are no context";
  EXPECT_EQ(first("  ", "a").scored_from, 1);
  config.begin_of_text = 8;
  EXPECT_THAT(first("", "a").ids, ElementsAre(8, space_a));
  config.begin_of_text = config.end_of_text = std::nullopt;
  test::expect_error([&] { first("", "a"); }, {"needs a token to begin with"});
}

TEST_F(Candidates, TooLongIsCutOnTheLeft) {
  config.context = 3;  // reads 3 tokens, so 4 with the predicted one
  const EncodedQuestion question = encode_question({{"uvxy"}, {"a", "bc"}, 0}, encode, config);
  EXPECT_TRUE(question.truncated);
  EXPECT_THAT(question.candidates[0].ids, ElementsAre('v', 'x', 'y', space_a));
  EXPECT_EQ(question.candidates[0].scored_from, 3);
  EXPECT_THAT(question.candidates[1].ids, ElementsAre('x', 'y', space_b, 'c'));
  EXPECT_EQ(question.candidates[1].scored_from, 2);
  EXPECT_EQ(shared_tokens(question), 0) << "they no longer begin alike";
  // Of a continuation that fills the context alone, the first token left is given.
  const Candidate long_one = first("x", "abcdefgh");
  EXPECT_THAT(long_one.ids, ElementsAre('e', 'f', 'g', 'h'));
  EXPECT_EQ(long_one.scored_from, 1);
  EXPECT_FALSE(encode_question({{"xy"}, {"ab", "c"}, 0}, encode, config).truncated) << "just fits";
}

TEST_F(Candidates, AContinuationMayMergeIntoTheContext) {
  const Encode one_token = [](std::string_view text) { return TokenIds(text.empty() ? 0 : 2, 5); };
  const Candidate candidate =
      encode_question({{"x"}, {"a", "b"}, 0}, one_token, config).candidates[0];
  EXPECT_EQ(candidate.scored_from, 1) << "at least one token counts";
}

TEST_F(Candidates, LengthIsInCharacters) {
  EXPECT_EQ(first("x", "na\xc3\xafve").characters, 5);
}

TEST_F(Candidates, SharedTokensEndBeforeTheFirstScoredOne) {
  EXPECT_EQ(shared_tokens(encode_question({{"xy"}, {"ab", "ac"}, 0}, encode, config)), 2);
  EXPECT_EQ(shared_tokens(encode_question({{"xy", "zy"}, {"a"}, 0}, encode, config)), 0);
}

TEST_F(Candidates, MisuseIsRefused) {
  EXPECT_THROW(encode_question({{"x"}, {"a", "b"}, 2}, encode, config), std::invalid_argument);
  EXPECT_THROW(encode_question({{"x"}, {"a", "b"}, -1}, encode, config), std::invalid_argument);
  EXPECT_THROW(encode_question({{"x"}, {"a", ""}, 0}, encode, config), std::invalid_argument);
  config.vocabulary = 128;
  test::expect_error([&] { first("x", "a"); },
                     {"gives id 225, but the model's vocabulary has 128"});
}

}  // namespace
}  // namespace dofla
