#include "dofla/evaluate/last_words.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "dofla/data/tasks/last_words.h"
#include "dofla/linear/linear_model.h"
#include "dofla/model/finite.h"
#include "tests/support/expect_error.h"
#include "tests/support/fixtures.h"
#include "tests/support/known_logits.h"
#include "tests/support/linear_fixture.h"
#include "tests/support/task_files.h"

namespace dofla {
namespace {

using test::expect_error;

class LastWordsOf : public test::KnownLogits {
 protected:
  // Transformers' greedy continuation of a beginning of the first row, and where it begins.
  Candidate greedy() const {
    const Tensor tensor = expected.tensor("greedy");
    const TokenIds ids(tensor.data<int64_t>(), tensor.data<int64_t>() + tensor.count());
    const Tensor input = expected.tensor("input_ids");
    const auto end = std::mismatch(ids.begin(), ids.end(), input.data<int64_t>()).first;
    return {ids, end - ids.begin(), 1};
  }
};

TEST_P(LastWordsOf, AreSaidWhereEveryTokenIsTransformersGreedyOne) {
  const Candidate said = greedy();
  ASSERT_GE(std::ssize(said.ids) - said.scored_from, 3);
  std::vector<EncodedQuestion> texts = {{{said}, 0, false}};
  // One wrong token anywhere, and the word is not said.
  for (auto at = static_cast<size_t>(said.scored_from); at < said.ids.size(); ++at) {
    Candidate wrong = said;
    wrong.ids[at] = (wrong.ids[at] + 1) % model.config().vocabulary;
    texts.push_back({{wrong}, 0, at % 2 == 0});
  }
  Candidate first = said;  // a word of one token
  first.ids.resize(static_cast<size_t>(said.scored_from) + 1);
  texts.push_back({{first}, 0, false});
  int64_t told = 0;
  const LastWords result =
      evaluate_last_words(model, texts, [&](const ProgressUpdate& update) { told = update.done; });
  EXPECT_EQ(result.words, std::ssize(texts));
  EXPECT_EQ(told, std::ssize(texts));
  EXPECT_EQ(result.truncated, std::ranges::count(texts, true, &EncodedQuestion::truncated));
  EXPECT_DOUBLE_EQ(result.acc.mean, 2 / static_cast<double>(texts.size()));
}

TEST_P(LastWordsOf, HaveTheLossOfTransformersLogits) {
  const std::vector<Candidate> words = {{row(0, 12), 7, 1}, {row(1, 9), 8, 1}, {row(0, 5), 3, 1}};
  const double score =
      reference_score(0, words[0]) + reference_score(1, words[1]) + reference_score(0, words[2]);
  const LastWords result =
      evaluate_last_words(model, {{{words[0]}, 0}, {{words[1]}, 0}, {{words[2]}, 0}});
  EXPECT_NEAR(result.loss, -score / 3, tolerance(8));
  EXPECT_DOUBLE_EQ(result.perplexity, std::exp(result.loss));
}

TEST_P(LastWordsOf, RefuseWhatIsNoWord) {
  EXPECT_THROW(evaluate_last_words(model, {}), std::invalid_argument);
  EXPECT_THROW(evaluate_last_words(model, {{}}), std::invalid_argument);
  const Candidate word = {row(0, 5), 3, 1};
  EXPECT_THROW(evaluate_last_words(model, {{{word, word}, 0}}), std::invalid_argument);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, LastWordsOf, testing::ValuesIn(test::fixture_models()),
                         [](const auto& name) { return name.param; });

class LastWordsFile : public testing::Test {
 protected:
  std::vector<Question> read(std::string_view lines) const {
    test::write_under(scratch.path(), "words.jsonl", lines);
    return read_last_words(scratch.path() / "words.jsonl");
  }
  const test::ScratchFolder scratch;
};

TEST_F(LastWordsFile, HasAContextAndAWordALine) {
  const std::vector<Question> read_back = read(
      "{\"context\": \" Ann sings \\n\", \"continuation\": \" well\"}\n\n"
      "{\"continuation\": \"home\", \"context\": \"She went\", \"more\": 1}\n");
  ASSERT_EQ(read_back.size(), 2u);
  EXPECT_EQ(read_back[0].context(0), " Ann sings");
  EXPECT_EQ(read_back[0].continuation(0), "well");
  EXPECT_EQ(read_back[1].context(0), "She went");
  EXPECT_EQ(read_back[1].candidates(), 1u);
}

TEST_F(LastWordsFile, BrokenLinesAreNamed) {
  const std::string good = "{\"context\": \"a\", \"continuation\": \"b\"}\n";
  expect_error([&] { read(""); }, {"words.jsonl: empty: expected lines of {\"context\""});
  expect_error([&] { read("\n \n"); }, {"words.jsonl: empty"});
  expect_error([&] { read(good + "She went home\n"); }, {"words.jsonl:2: "});
  expect_error([&] { read(good + "[1]\n"); }, {"words.jsonl:2: expected a JSON object"});
  expect_error([&] { read(good + "{\"context\": \"a\"}\n"); },
               {"words.jsonl:2: expected a text \"continuation\", found none"});
  expect_error([&] { read("{\"continuation\": \"a\"}\n"); },
               {"words.jsonl:1: expected a text \"context\", found none"});
  expect_error([&] { read("{\"context\": \"a\", \"continuation\": \"\"}\n"); },
               {"words.jsonl:1: \"continuation\" is empty"});
  expect_error([&] { read("{\"context\": \" \", \"continuation\": \"b\"}\n"); },
               {"words.jsonl:1: \"context\" is empty"});
  expect_error([&] { read("{\"context\": \"a\", \"continuation\": 7}\n"); },
               {"words.jsonl:1: expected a text \"continuation\", found 7"});
  expect_error([&] { read("{\"context\": \"\xff\", \"continuation\": \"b\"}\n"); },
               {"words.jsonl:1: not valid UTF-8"});
  expect_error([&] { read_last_words(scratch.path() / "none.jsonl"); }, {"none.jsonl"});
}

}  // namespace
}  // namespace dofla
