#include "dofla/evaluate/answers.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "dofla/evaluate/answers_json.h"
#include "dofla/evaluate/tasks.h"
#include "dofla/generate/generate.h"
#include "tests/support/expect_error.h"
#include "tests/support/fixtures.h"

namespace dofla {
namespace {

TEST(LetterIn, IsTheFirstWordWhereThatIsALetterOfAnOption) {
  for (const char* b : {"B", " B", "\nB", "B.", " (B)", " B. Hens fly", "**B**", "\"B\"", "B\n\nA",
                        " B, not A", "- B", ". B", "B:", "\t[B]"})
    EXPECT_EQ(letter_in(b, 4), 1u) << b;
  EXPECT_EQ(letter_in("A", 1), 0u);
  EXPECT_EQ(letter_in("Z", 26), 25u);
  for (const char* none : {"",
                           " ",
                           "\n",
                           "E",
                           "b",
                           "BB",
                           "Because",
                           "B2",
                           "2",
                           "2 B",
                           "The answer is B",
                           "Bé",
                           "éB",
                           "é B",
                           "?!",
                           "_",
                           "@",
                           "[",
                           "`",
                           "{",
                           "Â",
                           "B\xcc\x81",
                           "\xef\xbf\xbd B"})
    EXPECT_EQ(letter_in(none, 4), std::nullopt) << none;
  EXPECT_EQ(letter_in("B", 1), std::nullopt);
  EXPECT_EQ(letter_in("A", 0), std::nullopt);
  EXPECT_EQ(letter_in(std::string_view("\0B", 2), 4), 1u);
}

// Two questions of four options and one of two, with different right ones.
std::vector<Question> some_questions() {
  return {{{}, {}, 2, "Which bird swims?\n", {"a hen", "an owl", "a duck", "a wren"}},
          {{}, {}, 0, "What is wet?\n", {"water", "sand", "air", "fire"}},
          {{}, {}, 1, "What is hot?\n", {"ice", "fire"}}};
}

// What a pupil answers who knows which option they want: `wanted` by question.
std::vector<Letters> letters_for(const std::vector<Question>& questions,
                                 const std::vector<size_t>& wanted) {
  std::vector<Letters> letters;
  for (size_t q = 0; q < questions.size(); ++q) {
    letters.emplace_back();
    for (size_t turn = 0; turn < questions[q].options.size(); ++turn) {
      const std::vector<std::string>& shown = lettered(questions[q], turn).options;
      const auto at = std::ranges::find(shown, questions[q].options[wanted[q]]);
      letters.back().push_back(static_cast<size_t>(at - shown.begin()));
    }
  }
  return letters;
}

TEST(Letters, OfWhoKnowsAreAllRight) {
  const LetteredResult result =
      count_letters(some_questions(), letters_for(some_questions(), {2, 0, 1}));
  EXPECT_EQ(result.questions, 3);
  EXPECT_EQ(result.asked, 10);
  EXPECT_EQ(result.unanswered, 0);
  EXPECT_DOUBLE_EQ(result.acc.mean, 1);
  EXPECT_DOUBLE_EQ(result.acc.standard_error, 0);
  EXPECT_DOUBLE_EQ(result.as_published.mean, 1);
  EXPECT_DOUBLE_EQ(result.same_option, 1);
  EXPECT_DOUBLE_EQ(result.chance, (0.25 + 0.25 + 0.5) / 3);
}

// Always the same letter is right as often as chance, whatever the letter.
TEST(Letters, OfWhoLikesALetterAreChance) {
  for (const size_t letter : {0u, 1u}) {
    const std::vector<Letters> letters = {Letters(4, letter), Letters(4, letter),
                                          Letters(2, letter)};
    const LetteredResult result = count_letters(some_questions(), letters);
    EXPECT_DOUBLE_EQ(result.acc.mean, result.chance);
    EXPECT_DOUBLE_EQ(result.as_published.mean, 1.0 / 3) << "question 2 or 3 by luck";
    EXPECT_DOUBLE_EQ(result.same_option, 0);
  }
}

TEST(Letters, OfWhoIsSureAndWrongAreTheSameOption) {
  const LetteredResult result =
      count_letters(some_questions(), letters_for(some_questions(), {0, 0, 0}));
  EXPECT_DOUBLE_EQ(result.acc.mean, 1.0 / 3);
  EXPECT_DOUBLE_EQ(result.acc.standard_error, std::sqrt(1.0 / 3 * (2.0 / 3) / 2));
  EXPECT_DOUBLE_EQ(result.same_option, 1);
}

TEST(Letters, ThatAreMissingAreWrongAndNotTheSame) {
  std::vector<Letters> letters = letters_for(some_questions(), {2, 0, 1});
  letters[0][1] = std::nullopt;
  letters[2] = {std::nullopt, std::nullopt};
  const LetteredResult result = count_letters(some_questions(), letters);
  EXPECT_EQ(result.unanswered, 3);
  EXPECT_DOUBLE_EQ(result.acc.mean, (0.75 + 1 + 0) / 3);
  EXPECT_DOUBLE_EQ(result.as_published.mean, 2.0 / 3);
  EXPECT_DOUBLE_EQ(result.same_option, 1.0 / 3);
  EXPECT_EQ(to_json(result)["unanswered"], 3);
  EXPECT_EQ(to_json(result)["same_option"], result.same_option);
  EXPECT_THROW(count_letters(some_questions(), {}), std::invalid_argument);
  EXPECT_THROW(count_letters(some_questions(), {{0}, {0}, {0}}), std::invalid_argument);
}

class LettersOfWikiMini : public testing::Test {
 protected:
  const fs::path folder = test::assets() / "wiki-mini";
  const Checkpoint checkpoint{folder};
  const Transformer model{checkpoint};
  const Tokenizer tokenizer = Tokenizer::load(folder);
  const Encode encode = [this](std::string_view text) { return tokenizer.encode(text, false); };
};

// Each prompt scored and continued by itself. Examples before the question make the model, which is
// small, write letters at all.
TEST_F(LettersOfWikiMini, AreThoseOfEveryPromptByItself) {
  std::vector<Question> questions = some_questions();
  for (Question& question : questions)
    question.stem = "Answer: C\nAnswer: B\nAnswer: B\nAnswer: C\n" + question.stem;
  std::vector<Letters> likely, written;
  for (const Question& question : questions) {
    likely.emplace_back();
    written.emplace_back();
    for (size_t turn = 0; turn < question.options.size(); ++turn) {
      const Question asked = lettered(question, turn);
      const std::vector<double> scores =
          score_candidates(model, encode_question(asked, encode, model.config()));
      likely.back().push_back(
          static_cast<size_t>(std::ranges::max_element(scores) - scores.begin()));
      GenerateOptions options = {.max_tokens = 4, .stop_at_end_of_text = false, .sampler = {}};
      options.sampler.temperature = 0;
      const Generation drawn = generate(model, encode(asked.contexts[0]), options);
      written.back().push_back(letter_in(tokenizer.decode(drawn.ids), question.options.size()));
    }
  }
  const auto expect_same = [&](AnswerBy by, const std::vector<Letters>& letters) {
    const LetteredResult wanted = count_letters(questions, letters),
                         found = evaluate_letters(model, tokenizer, questions, by);
    EXPECT_EQ(to_json(found), to_json(wanted)) << name(by);
    EXPECT_LT(found.unanswered, found.asked) << "nothing was compared";
  };
  expect_same(AnswerBy::kLikelihood, likely);
  expect_same(AnswerBy::kGeneration, written);
}

TEST_F(LettersOfWikiMini, LongQuestionsAreCutAndCounted) {
  Question question = some_questions()[2];
  for (int i = 0; i < 600; ++i) question.stem = "Long " + question.stem;
  for (const AnswerBy by : {AnswerBy::kLikelihood, AnswerBy::kGeneration})
    EXPECT_EQ(evaluate_letters(model, tokenizer, {question}, by).truncated, 2);
}

TEST_F(LettersOfWikiMini, NeedOptions) {
  const Question none = {{"Question: Why?\nAnswer:"}, {"so", "not"}, 0};
  test::expect_error([&] { evaluate_letters(model, tokenizer, {none}, AnswerBy::kGeneration); },
                     {"a question with 0 options cannot be asked by letters: that takes 2 to 26"});
  EXPECT_THROW(evaluate_letters(model, tokenizer, {}, AnswerBy::kGeneration),
               std::invalid_argument);
}

}  // namespace
}  // namespace dofla
