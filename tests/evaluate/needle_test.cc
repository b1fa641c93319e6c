// A single fact in a long text.
#include <cctype>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "dofla/evaluate/recall.h"
#include "dofla/generate/generate.h"
#include "dofla/linear/linear_model.h"
#include "dofla/pipeline/text.h"
#include "tests/support/expect_error.h"
#include "tests/support/fixtures.h"
#include "tests/support/linear_fixture.h"

namespace dofla {
namespace {

TokenIds counted_text(size_t tokens) {
  TokenIds text(tokens);
  for (size_t i = 0; i < tokens; ++i) text[i] = 2000 + static_cast<int64_t>(i);
  return text;
}

// Taken apart from what its tokens say: the sentence, then the question at the end, then the text.
TEST(Needle, StandsAtItsDepthInAnUncutText) {
  const Tokenizer tokenizer = Tokenizer::load(test::assets() / "wiki-mini");
  const TokenIds text = counted_text(3 * 328);
  const RecallPrompts prompts(tokenizer, text, 3, 200, 5);
  for (int64_t i = 0; i < 3; ++i)
    for (const int64_t length : {60, 127, 328})
      for (const double depth : {0.0, 0.25, 0.5, 1.0}) {
        const auto [prompt, facts] = prompts.needle(i, length, depth);
        ASSERT_EQ(std::ssize(prompt), length);
        ASSERT_EQ(facts.size(), 1u);
        EXPECT_EQ(facts[0].number, prompts.question(i, 200).facts[0].number);
        const std::string question = " The code of the " + facts[0].name + " is";
        const TokenIds sentence = tokenizer.encode(question + " " + facts[0].number + ".");
        const TokenIds ending = tokenizer.encode(question);
        const int64_t left = length - std::ssize(sentence) - std::ssize(ending);
        const auto before = std::lround(depth * static_cast<double>(left));
        TokenIds expected(text.begin() + i * 328, text.begin() + i * 328 + left);
        expected.insert(expected.begin() + before, sentence.begin(), sentence.end());
        expected.insert(expected.end(), ending.begin(), ending.end());
        EXPECT_EQ(prompt, expected);
      }
}

TEST(Needle, BeginsAfterWhatTheTokenizerBeginsATextWith) {
  const Tokenizer tokenizer = Tokenizer::load(test::tests_folder() / "models/stories260K");
  const RecallPrompts prompts(tokenizer, TokenIds(400, 300), 1, 200, 5);
  const auto [prompt, facts] = prompts.needle(0, 200, 0);
  EXPECT_EQ(prompt[0], tokenizer.encode("", true)[0]);
  EXPECT_EQ(std::ssize(prompt), 200);
  const std::string said = tokenizer.decode(prompt, true);
  EXPECT_NE(said.find("The code of the " + facts[0].name + " is " + facts[0].number + "."),
            std::string::npos);
  EXPECT_TRUE(said.ends_with("The code of the " + facts[0].name + " is")) << said;
}

TEST(Needle, RefusesWhatDoesNotFit) {
  const Tokenizer tokenizer = Tokenizer::load(test::assets() / "wiki-mini");
  const RecallPrompts prompts(tokenizer, counted_text(328), 1, 200, 5);
  for (const double depth : {-0.01, 1.01, std::numeric_limits<double>::quiet_NaN()})
    EXPECT_THROW(prompts.needle(0, 100, depth), std::invalid_argument) << depth;
  EXPECT_THROW(prompts.needle(0, 329, 0), std::invalid_argument);
  EXPECT_THROW(prompts.needle(0, 0, 0), std::invalid_argument);
  EXPECT_THROW(prompts.needle(1, 100, 0), std::invalid_argument);
  test::expect_error([&] { prompts.needle(0, 9, 0); }, {"do not fit into a prompt of 9"});
}

TEST(Needle, IsCountedAsThePlainGeneratorAnswers) {
  const Checkpoint checkpoint(test::assets() / "wiki-mini");
  const Transformer model(checkpoint);
  const Tokenizer tokenizer = Tokenizer::load(checkpoint.folder());
  const TokenIds text =
      read_running_text(checkpoint, {.files = {test::assets() / "wikipedia.jsonl.zst"}}, 20 * 129);
  const RecallPrompts prompts(tokenizer, text, 20, 1, 1);
  int64_t exact = 0;
  for (int64_t i = 0; i < 20; ++i) {
    const auto [prompt, facts] = prompts.needle(i, 129, 1);
    GenerateOptions options = {.max_tokens = 6, .stop_at_end_of_text = false, .sampler = {}};
    options.sampler.temperature = 0;
    const std::string answer = tokenizer.decode(generate(model, prompt, options).ids);
    exact += answer.starts_with(" " + facts[0].number) && !std::isdigit(answer[5]);
  }
  EXPECT_GT(exact, 0) << "nothing was compared";
  EXPECT_LT(exact, 20) << "nothing was compared";
  const NeedleResult result = measure_needle(model, tokenizer, prompts, 129, 1);
  EXPECT_EQ(result.length, 129);
  EXPECT_EQ(result.depth, 1);
  EXPECT_EQ(result.questions, 20);
  EXPECT_EQ(result.exact, exact);
  EXPECT_DOUBLE_EQ(result.chance, 1.0 / 7900);
}

TEST(Needle, IsAskedAtEveryDepthOfEveryLengthThatThePromptsHave) {
  const Checkpoint checkpoint(test::assets() / "wiki-mini");
  const Transformer model(checkpoint);
  const Tokenizer tokenizer = Tokenizer::load(checkpoint.folder());
  const RecallPrompts prompts(tokenizer, counted_text(130), 1, 2, 1);
  const RecallReport report = evaluate_recall(model, tokenizer, prompts, {1, 2, 3}, {0, 1});
  ASSERT_EQ(report.needle.size(), 4u);
  EXPECT_EQ(report.needle[0].length, 129);
  EXPECT_EQ(report.needle[3].length, 130);
  EXPECT_EQ(report.needle[2].depth, 0);
  EXPECT_EQ(report.needle[3].depth, 1);
  EXPECT_EQ(report.induction.size(), 3u);
  EXPECT_DOUBLE_EQ(report.induction[0].chance, 1.0 / 4096);
}

// stories260K has rotary positions and a context of 512: softmax attention ends there, a student
// whose state does not grow goes on. GPT-2's positions are learnt and end for both.
TEST(Needle, IsAskedPastTheContextWherePositionsAreRotary) {
  const fs::path folder = test::tests_folder() / "models/stories260K";
  const Checkpoint checkpoint(folder);
  const Tokenizer tokenizer = Tokenizer::load(folder);
  const Transformer teacher(checkpoint);
  const int64_t context = teacher.config().context, distance = context + 100;
  const RecallPrompts prompts(
      tokenizer, TokenIds(static_cast<size_t>(2 * RecallPrompts::tokens(distance)), 300), 2,
      distance, 0);
  const Transformer linear = make_linear_model(checkpoint, test::ragged_features(teacher.config())),
                    hybrid = make_linear_model(checkpoint, test::hybrid_features(teacher.config()));
  for (const Transformer* student : {&linear, &hybrid}) {
    EXPECT_EQ(longest_recall(*student, {distance}), distance);
    const RecallReport report = evaluate_recall(*student, tokenizer, prompts, {distance}, {0.5});
    ASSERT_EQ(report.needle.size(), 1u);
    EXPECT_EQ(report.needle[0].questions, 2);
    EXPECT_GT(report.needle[0].length, context);
    EXPECT_EQ(report.induction.size(), 1u);
  }
  EXPECT_TRUE(evaluate_recall(teacher, tokenizer, prompts, {distance}, {0.5}).needle.empty());
  test::expect_error([&] { longest_recall(teacher, {distance}); },
                     {"context of 512 tokens, where the cache of its softmax attention ends"});

  const Checkpoint wiki_mini(test::assets() / "wiki-mini");
  const Transformer learnt =
      make_linear_model(wiki_mini, test::ragged_features(wiki_mini.config()));
  test::expect_error([&] { longest_recall(learnt, {600}); },
                     {"context of 512 tokens, where its learnt positions end", "is 379"});
}

}  // namespace
}  // namespace dofla
