#include "dofla/evaluate/recall.h"

#include <algorithm>
#include <cctype>
#include <set>

#include <gtest/gtest.h>

#include "dofla/generate/generate.h"
#include "dofla/linear/linear_model.h"
#include "dofla/pipeline/text.h"
#include "tests/support/expect_error.h"
#include "tests/support/fixtures.h"
#include "tests/support/linear_fixture.h"

namespace dofla {
namespace {

// Byte-level BPE with one token for most numbers, with several, and SentencePiece with <s> and a
// token for every digit.
std::vector<fs::path> tokenizer_folders() {
  return {test::tests_folder() / "tokenizers/gpt2", test::tests_folder() / "tokenizers/gpt_neox",
          test::assets() / "wiki-mini", test::tests_folder() / "models/stories260K"};
}

TokenIds ordinary_text(const Tokenizer& tokenizer, size_t tokens) {
  TokenIds text;
  for (int i = 0; text.size() < tokens; ++i) {
    const TokenIds more =
        tokenizer.encode("Once there were " + std::to_string(i % 9) + " birds and a cat.", false);
    text.insert(text.end(), more.begin(), more.end());
  }
  text.resize(tokens);
  return text;
}

size_t times_in(const std::string& text, const std::string& part) {
  size_t times = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++times;
  return times;
}

// Prompts taken apart from their end by what their tokens say, not by how they were built.
TEST(RecallPromptsOf, EveryTokenizerHaveTheExactDistance) {
  for (const fs::path& folder : tokenizer_folders()) {
    const Tokenizer tokenizer = Tokenizer::load(folder);
    const RecallPrompts prompts(tokenizer, ordinary_text(tokenizer, 6 * 428), 6, 300, 1);
    for (const int64_t distance : {40, 128, 299, 300})
      for (int64_t i = 0; i < 6; ++i) {
        const TokenIds prompt = prompts.question(i, distance).prompt;
        const Fact fact = prompts.question(i, distance).facts[0];
        ASSERT_EQ(std::ssize(prompt), distance + 128);
        const std::string question = "The code of the " + fact.name + " is";
        // As many tokens from the end as say the question.
        int64_t asked = 1;
        const auto last = [&](int64_t tokens) {
          return tokenizer.decode(TokenIds(prompt.end() - tokens, prompt.end()));
        };
        while (last(asked).find(question) == std::string::npos && asked < 60) ++asked;
        ASSERT_TRUE(last(asked) == question || last(asked) == " " + question) << last(asked);
        const TokenIds read(prompt.begin(), prompt.end() - asked - distance);
        const std::string text = tokenizer.decode(read);
        EXPECT_TRUE(text.ends_with(" " + question + " " + fact.number + ".")) << text;
      }
  }
}

TEST(RecallPromptsOf, EveryTokenizerHoldEveryFactOnce) {
  for (const fs::path& folder : tokenizer_folders()) {
    const Tokenizer tokenizer = Tokenizer::load(folder);
    const RecallPrompts prompts(tokenizer, ordinary_text(tokenizer, 8 * 328), 8, 200, 5);
    for (int64_t i = 0; i < 8; ++i) {
      const auto [prompt, facts] = prompts.question(i, 200);
      const std::string text = tokenizer.decode(prompt);
      std::set<std::string> names, numbers;
      for (const Fact& fact : facts) {
        EXPECT_EQ(times_in(text, " The code of the " + fact.name + " is " + fact.number + "."), 1u)
            << text;
        EXPECT_EQ(times_in(text, fact.number), 1u);
        EXPECT_EQ(fact.number.size(), 4u);
        names.insert(fact.name);
        numbers.insert(fact.number);
      }
      EXPECT_EQ(names.size(), 5u);
      EXPECT_EQ(numbers.size(), 5u);
      const TokenIds special = tokenizer.encode("", true);
      EXPECT_TRUE(std::equal(special.begin(), special.end(), prompt.begin()));
    }
  }
}

// Without the facts and the question, what is left is the text of that question, uncut in between.
TEST(RecallPromptsOf, WikiMiniKeepTheText) {
  const Tokenizer tokenizer = Tokenizer::load(test::assets() / "wiki-mini");
  TokenIds text(3 * 328);
  for (size_t i = 0; i < text.size(); ++i) text[i] = 2000 + static_cast<int64_t>(i);
  const RecallPrompts prompts(tokenizer, text, 3, 200, 5);
  std::set<size_t> places;
  for (int64_t i = 0; i < 3; ++i) {
    TokenIds prompt = prompts.question(i, 200).prompt;
    const auto facts = prompts.question(i, 200).facts;
    prompt.resize(prompt.size() -
                  tokenizer.encode(" The code of the " + facts[0].name + " is").size());
    for (const Fact& fact : facts) {
      const TokenIds ids =
          tokenizer.encode(" The code of the " + fact.name + " is " + fact.number + ".");
      const auto found = std::search(prompt.begin(), prompt.end(), ids.begin(), ids.end());
      ASSERT_NE(found, prompt.end());
      places.insert(static_cast<size_t>(found - prompt.begin()));
      prompt.erase(found, found + std::ssize(ids));
    }
    EXPECT_TRUE(std::equal(prompt.begin(), prompt.end(), text.begin() + i * 328));
  }
  EXPECT_GT(places.size(), 10u) << "facts stand at random places";
}

TEST(RecallPromptsOf, OneSeedAreTheSameAndOfAnotherDiffer) {
  const Tokenizer tokenizer = Tokenizer::load(test::assets() / "wiki-mini");
  const TokenIds text = ordinary_text(tokenizer, 2 * 228);
  const RecallPrompts a(tokenizer, text, 2, 100, 3), b(tokenizer, text, 2, 100, 3),
      other(tokenizer, text, 2, 100, 4);
  EXPECT_EQ(a.question(1, 100).prompt, b.question(1, 100).prompt);
  EXPECT_NE(a.question(1, 100).prompt, other.question(1, 100).prompt);
  EXPECT_NE(a.question(0, 100).facts[0].number, a.question(1, 100).facts[0].number);
  EXPECT_EQ(a.question(1, 50).facts[0].number, a.question(1, 100).facts[0].number)
      << "distances ask the same";
}

TEST(RecallPromptsOf, TooLittleTextAreAnErrorThatSaysHowMuchThereIs) {
  const Tokenizer tokenizer = Tokenizer::load(test::assets() / "wiki-mini");
  const TokenIds text = ordinary_text(tokenizer, 700);
  test::expect_error([&] { RecallPrompts(tokenizer, text, 4, 100, 0); },
                     {"enough for 3 questions with a distance of 100, not for 4"});
  test::expect_error([&] { RecallPrompts(tokenizer, text, 1, 573, 0); },
                     {"the text has 700 tokens, and a prompt with a distance of 573 takes 701"});
  EXPECT_THROW(RecallPrompts(tokenizer, text, 1, 0, 0), std::invalid_argument);
  EXPECT_THROW(RecallPrompts(tokenizer, text, 0, 9, 0), std::invalid_argument);
  EXPECT_NO_THROW(RecallPrompts(tokenizer, text, 3, 100, 0).question(2, 1));
}

TEST(RecallPromptsOf, ATokenizerThatCannotWriteThemAreAnError) {
  const Tokenizer letters = Tokenizer::parse(R"({"pre_tokenizer": null, "model": {"type": "BPE",
      "vocab": {"a": 0, ".": 1, " ": 2, "?": 3}, "merges": [], "unk_token": "?"}})",
                                             "letters");
  const RecallPrompts prompts(letters, TokenIds(400, 0), 1, 100, 0);
  test::expect_error([&] { prompts.question(0, 100); },
                     {"the tokenizer cannot write \". The code"});
}

TEST(RecallAnswers, AreTheDigitsThatTheContinuationBeginsWith) {
  const std::vector<Fact> facts = {{"red lamp", "4817"}, {"blue door", "9054"}};
  for (const char* exact : {" 4817.", "4817", " 4817 and", "  4817\n"})
    EXPECT_EQ(judge_answer(exact, facts), RecallAnswer::kExact) << exact;
  for (const char* confused : {" 9054.", "9054"})
    EXPECT_EQ(judge_answer(confused, facts), RecallAnswer::kConfused) << confused;
  for (const char* other : {"", " ", " 48170", " 481", " 4818", " about 4817", "\n4817", "4 817"})
    EXPECT_EQ(judge_answer(other, facts), RecallAnswer::kOther) << other;
  EXPECT_THROW(judge_answer("1", {}), std::invalid_argument);
}

class RecallOfWikiMini : public testing::Test {
 protected:
  const fs::path folder = test::assets() / "wiki-mini";
  const Checkpoint checkpoint{folder};
  const Transformer model{checkpoint};
  const Tokenizer tokenizer = Tokenizer::load(folder);
  const TokenIds text =
      read_running_text(checkpoint, {.files = {test::assets() / "wikipedia.jsonl.zst"}}, 20 * 160);
};

TEST_F(RecallOfWikiMini, TheTextHasNoSpecialTokens) {
  EXPECT_EQ(std::ssize(text), 20 * 160);
  EXPECT_EQ(std::ranges::count(text, 0), 0) << "<|endoftext|>";
  EXPECT_NE(tokenizer.decode(text).find("\n\n"), std::string::npos);
}

// More questions than are continued side by side, each asked again by itself.
TEST_F(RecallOfWikiMini, CountsWhatThePlainGeneratorAnswers) {
  const RecallPrompts prompts(tokenizer, text, 20, 32, 2);
  RecallResult expected;
  for (int64_t i = 0; i < 20; ++i) {
    const auto [prompt, facts] = prompts.question(i, 32);
    GenerateOptions options = {.max_tokens = 6, .stop_at_end_of_text = false, .sampler = {}};
    options.sampler.temperature = 0;
    const std::string answer = tokenizer.decode(generate(model, prompt, options).ids);
    for (size_t f = 0; f < facts.size(); ++f)
      if (answer.starts_with(" " + facts[f].number) && !std::isdigit(answer[5]))
        ++(f == 0 ? expected.exact : expected.confused);
  }
  int64_t told = 0;
  const RecallResult result =
      measure_recall(model, tokenizer, prompts, 32, [&](const ProgressUpdate& update) {
        EXPECT_GT(update.done, told);
        told = update.done;
      });
  EXPECT_EQ(told, 20);
  EXPECT_EQ(result.distance, 32);
  EXPECT_EQ(result.questions, 20);
  EXPECT_EQ(result.exact, expected.exact);
  EXPECT_EQ(result.confused, expected.confused);
  EXPECT_GT(expected.exact + expected.confused, 0) << "nothing was compared";
  EXPECT_DOUBLE_EQ(result.chance, 0.2);
}

TEST_F(RecallOfWikiMini, DistancesThatDoNotFitAreLeftOut) {
  // Prompts have 128 tokens more than the distance, and 5 of the answer's 6 are read again.
  EXPECT_TRUE(recall_fits(model, 512 - 128 - 5));
  EXPECT_FALSE(recall_fits(model, 512 - 128 - 4));
  EXPECT_TRUE(induction_fits(model, tokenizer, 256));
  EXPECT_FALSE(induction_fits(model, tokenizer, 257));
  EXPECT_EQ(longest_recall(model, {32, 30, 1900}), 32);
  test::expect_error([&] { longest_recall(model, {512, 400}); }, {"the longest that does is 379"});
  const RecallPrompts prompts(tokenizer, text, 2, 300, 0);
  const RecallReport report = evaluate_recall(model, tokenizer, prompts, {20, 300, 310, 400});
  ASSERT_EQ(report.recall.size(), 2u);
  EXPECT_EQ(report.recall[1].distance, 300);
  ASSERT_EQ(report.induction.size(), 1u);
  EXPECT_EQ(report.induction[0].distance, 20);
}

TEST_F(RecallOfWikiMini, TheLongestDistanceCanBeAnswered) {
  const RecallPrompts prompts(tokenizer, text, 1, 379, 0);
  EXPECT_EQ(measure_recall(model, tokenizer, prompts, 379).questions, 1);
  EXPECT_GT(measure_induction(model, {repeated_tokens(tokenizer, 4096, 256, 1)}, 256).accuracy, 0);
}

// With room for all keys nothing is forgotten; without far keys and features nothing far is known.
TEST_F(RecallOfWikiMini, AStudentThatKeepsAllKeysRecallsAsItsTeacherAndOneThatKeepsFewDoesNot) {
  const auto student = [&](int64_t keys, int64_t recent) {
    FeatureSet none = test::ragged_features(model.config());
    none.layers.assign(none.layers.size(), {});
    none.exact.assign(none.layers.size(), {.keys = keys, .sinks = 4, .recent = recent, .block = 8});
    return make_linear_model(checkpoint, none);
  };
  const RecallPrompts prompts(tokenizer, text, 20, 32, 2);
  const RecallReport teacher = evaluate_recall(model, tokenizer, prompts, {32}),
                     all = evaluate_recall(student(256, 8), tokenizer, prompts, {32}),
                     few = evaluate_recall(student(16, 4), tokenizer, prompts, {32});
  EXPECT_EQ(all.recall[0].exact, teacher.recall[0].exact);
  EXPECT_EQ(all.recall[0].confused, teacher.recall[0].confused);
  EXPECT_NEAR(all.induction[0].accuracy, teacher.induction[0].accuracy, 1.0 / 128);
  EXPECT_LT(few.induction[0].accuracy, teacher.induction[0].accuracy / 2);
}

TEST(RepeatedTokens, AreRandomOrdinaryTokensTwiceAfterTheBeginning) {
  const Tokenizer tokenizer = Tokenizer::load(test::tests_folder() / "models/stories260K");
  const TokenIds ids = repeated_tokens(tokenizer, 512, 200, 7);
  const TokenIds beginning = tokenizer.encode("", true);
  ASSERT_EQ(beginning.size(), 1u);
  ASSERT_EQ(ids.size(), 401u);
  EXPECT_EQ(ids[0], beginning[0]);
  EXPECT_TRUE(std::equal(ids.begin() + 1, ids.begin() + 201, ids.begin() + 201));
  for (size_t i = 1; i < ids.size(); ++i) EXPECT_FALSE(tokenizer.is_special(ids[i]));
  EXPECT_GT(std::set(ids.begin(), ids.end()).size(), 100u);
  EXPECT_EQ(ids, repeated_tokens(tokenizer, 512, 200, 7));
  EXPECT_NE(ids, repeated_tokens(tokenizer, 512, 200, 8));
  EXPECT_NE(ids, repeated_tokens(tokenizer, 512, 200, 7, 1));
}

// Against Transformers' own logits of a fixture: what counts as the last `distance` tokens' share.
class Induction : public testing::TestWithParam<std::string> {};

TEST_P(Induction, IsTheShareOfLikeliestTokensInTransformersLogits) {
  const fs::path folder = test::fixtures() / GetParam();
  const Checkpoint checkpoint(folder);
  const Safetensors expected(folder / "expected.safetensors");
  const Tensor ids = expected.tensor("input_ids"), logits = expected.tensor("logits");
  const int64_t tokens = ids.size(1), vocabulary = logits.size(2), distance = tokens / 2;
  // The fixture's sequences, ended by what is likeliest after all of their tokens but one (right),
  // and by another token (wrong).
  std::vector<TokenIds> sequences;
  int64_t right = 0;
  for (int64_t b = 0; b < ids.size(0); ++b)
    for (const int64_t shift : {0, 1}) {
      const int64_t* row = ids.data<int64_t>() + b * tokens;
      TokenIds sequence(row, row + tokens);
      for (int64_t t = tokens - distance + 1; t <= tokens; ++t) {
        const float* at = logits.data<float>() + (b * tokens + t - 1) * vocabulary;
        const int64_t likeliest = std::max_element(at, at + vocabulary) - at;
        if (t == tokens) sequence.push_back((likeliest + shift) % vocabulary);
        right += likeliest == sequence[static_cast<size_t>(t)];
      }
      sequences.push_back(sequence);
    }
  ASSERT_GT(right, 0);
  const Transformer model(checkpoint);
  EXPECT_EQ(measure_induction(model, sequences, 1).accuracy, 0.5) << "every second end is right";
  const InductionResult result = measure_induction(model, sequences, distance);
  EXPECT_EQ(result.distance, distance);
  EXPECT_DOUBLE_EQ(result.accuracy, static_cast<double>(right) /
                                        static_cast<double>(std::ssize(sequences) * distance));
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Induction, testing::ValuesIn(test::fixture_models()),
                         [](const auto& name) { return name.param; });

}  // namespace
}  // namespace dofla
