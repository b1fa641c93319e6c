#include "dofla/evaluate/agreement.h"

#include <gtest/gtest.h>

#include "dofla/evaluate/answers_json.h"
#include "dofla/generate/generate.h"
#include "tests/support/expect_error.h"
#include "tests/support/fixtures.h"

namespace dofla {
namespace {

TEST(AgreementOf, ContinuationsIsTheTokensBeforeTheFirstDifference) {
  const std::vector<TokenIds> teacher = {{1, 2, 3, 4}, {5, 6, 7, 8}, {1, 1, 1, 1}, {2, 2, 2, 2}};
  // 4 (equal), 0, 2 (what comes after does not count), 3.
  const std::vector<TokenIds> student = {{1, 2, 3, 4}, {6, 6, 7, 8}, {1, 1, 2, 1}, {2, 2, 2, 9}};
  const Agreement four = agreement(teacher, student);
  EXPECT_EQ(four.prompts, 4);
  EXPECT_EQ(four.tokens, 4);
  EXPECT_DOUBLE_EQ(four.mean, 2.25);
  EXPECT_DOUBLE_EQ(four.median, 2.5);
  EXPECT_DOUBLE_EQ(four.equal, 0.25);
  const Agreement three =
      agreement({teacher.begin(), teacher.end() - 1}, {student.begin(), student.end() - 1});
  EXPECT_DOUBLE_EQ(three.mean, 2);
  EXPECT_DOUBLE_EQ(three.median, 2);
  EXPECT_EQ(to_json(four).dump(),
            R"({"prompts":4,"tokens":4,"median":2.5,"mean":2.25,"equal":0.25})");
}

TEST(AgreementOf, AModelWithItselfIsWhole) {
  const Transformer model{Checkpoint(test::assets() / "wiki-mini")};
  const Tokenizer tokenizer = Tokenizer::load(test::assets() / "wiki-mini");
  const TokenIds text = tokenizer.encode(
      "The town lies on the river. It has a church of the twelfth century and a school. In the "
      "north are hills.");
  const std::vector<TokenIds> prompts = prompts_from(text, 3, 7);
  const std::vector<TokenIds> drawn = generate_greedily(model, prompts, 10);
  const Agreement result = agreement(drawn, generate_greedily(model, prompts, 10));
  EXPECT_EQ(result.mean, 10);
  EXPECT_EQ(result.median, 10);
  EXPECT_EQ(result.equal, 1);
}

TEST(AgreementOf, PromptsAreStretchesOfTheText) {
  EXPECT_EQ(prompts_from({1, 2, 3, 4, 5}, 2, 2), (std::vector<TokenIds>{{1, 2}, {3, 4}}));
  test::expect_error(
      [] {
        prompts_from({1, 2, 3, 4, 5}, 3, 2);
      },
      {"the text has 5 tokens, enough for 2 prompts of 2 tokens, not for 3"});
  EXPECT_THROW(prompts_from({1, 2}, 0, 1), std::invalid_argument);
  EXPECT_THROW(prompts_from({1, 2}, 1, 0), std::invalid_argument);
}

TEST(AgreementOf, UnequalContinuationsAreMisuse) {
  EXPECT_THROW(agreement({}, {}), std::invalid_argument);
  EXPECT_THROW(agreement({{1}}, {{1}, {1}}), std::invalid_argument);
  EXPECT_THROW(agreement({{1, 2}}, {{1}}), std::invalid_argument);
  EXPECT_THROW(agreement({{}}, {{}}), std::invalid_argument);
}

}  // namespace
}  // namespace dofla
