#include "dofla/evaluate/tasks.h"

#include <cmath>

#include <gtest/gtest.h>

#include "dofla/distill/feature_init.h"
#include "dofla/linear/linear_model.h"
#include "dofla/plan/allocate.h"
#include "tests/support/fixtures.h"
#include "tests/support/known_logits.h"

namespace dofla {
namespace {

class TaskScores : public test::KnownLogits {};

// The sum of the candidate's log-likelihoods, the whole of it read at once.
double plain_score(const Transformer& model, const Candidate& candidate) {
  const auto end = candidate.ids.end() - 1;
  const Tensor hidden = model.forward(to_tensor(TokenIds(candidate.ids.begin(), end)));
  const Tensor logits = model.logits(hidden.reshape({hidden.size(1), hidden.size(2)}));
  double score = 0;
  for (auto i = static_cast<size_t>(candidate.scored_from); i < candidate.ids.size(); ++i) {
    const float* at = logits.data<float>() + (static_cast<int64_t>(i) - 1) * logits.size(1);
    double sum = 0;
    for (int64_t v = 0; v < logits.size(1); ++v) sum += std::exp(double(at[v]) - at[0]);
    score += double(at[candidate.ids[i]]) - at[0] - std::log(sum);
  }
  return score;
}

TEST_P(TaskScores, AreTransformersLogLikelihoods) {
  const EncodedQuestion question = {{{row(0, 12), 7, 5}, {row(0, 12), 11, 5}, {row(0, 9), 7, 5}},
                                    0};
  const std::vector<double> scores = score_candidates(model, question);
  ASSERT_EQ(scores.size(), 3u);
  for (size_t i = 0; i < 3; ++i)
    EXPECT_NEAR(scores[i], reference_score(0, question.candidates[i]), tolerance(5));
}

// Candidates that branch at once, late, one token apart, of different lengths, or not at all.
std::vector<EncodedQuestion> branching_questions(const TokenIds& a, const TokenIds& b) {
  const auto joined = [](const TokenIds& head, const TokenIds& tail, size_t kept, size_t added) {
    TokenIds ids(head.begin(), head.begin() + static_cast<int64_t>(kept));
    ids.insert(ids.end(), tail.begin(), tail.begin() + static_cast<int64_t>(added));
    return ids;
  };
  return {{{{a, 3, 1}, {b, 5, 1}}, 0},
          {{{joined(a, b, 8, 1), 8, 1}, {joined(a, a, 8, 1), 8, 1}}, 0},
          {{{joined(a, b, 8, 4), 8, 1}, {joined(a, a, 8, 1), 8, 1}, {joined(a, b, 8, 2), 8, 1}}, 0},
          {{{joined(a, b, 5, 6), 8, 1}, {joined(a, a, 5, 4), 7, 1}}, 0},
          {{{a, 4, 1}, {a, 4, 1}}, 0},
          {{{joined(a, a, 1, 1), 1, 1}, {joined(a, b, 1, 1), 1, 1}}, 0}};
}

TEST_P(TaskScores, SharingTheContextChangesNothing) {
  for (const EncodedQuestion& question : branching_questions(row(0, 12), row(1, 12))) {
    const std::vector<double> scores = score_candidates(model, question);
    for (size_t i = 0; i < scores.size(); ++i)
      EXPECT_NEAR(scores[i], plain_score(model, question.candidates[i]), tolerance(12));
  }
}

TEST_P(TaskScores, SharingTheContextChangesNothingInALinearModel) {
  const DimensionPlan plan = fixed_plan(identity_of(model.config()), 9);
  const Transformer linear = make_linear_model(checkpoint, init_features(plan, {}));
  for (const EncodedQuestion& question : branching_questions(row(0, 12), row(1, 12))) {
    const std::vector<double> scores = score_candidates(linear, question);
    for (size_t i = 0; i < scores.size(); ++i)
      EXPECT_NEAR(scores[i], plain_score(linear, question.candidates[i]), tolerance(12));
  }
}

TEST_P(TaskScores, AreTheSameInABatch) {
  const DimensionPlan plan = fixed_plan(identity_of(model.config()), 9);
  const Transformer linear = make_linear_model(checkpoint, init_features(plan, {}));
  const std::vector<EncodedQuestion> questions = branching_questions(row(0, 12), row(1, 12));
  std::vector<const EncodedQuestion*> all;
  for (const EncodedQuestion& question : questions) all.push_back(&question);
  for (const Transformer* each : {&model, &linear}) {
    const std::vector<std::vector<double>> scores = score_candidates(*each, all);
    ASSERT_EQ(scores.size(), questions.size());
    for (size_t q = 0; q < questions.size(); ++q)
      for (size_t i = 0; i < scores[q].size(); ++i)
        EXPECT_NEAR(scores[q][i], plain_score(*each, questions[q].candidates[i]), tolerance(12));
  }
}

TEST_P(TaskScores, ACandidateMayFillTheContext) {
  const int64_t context = model.config().context;
  TokenIds ids(static_cast<size_t>(context) + 1);
  for (int64_t i = 0; i <= context; ++i)
    ids[static_cast<size_t>(i)] = (7 * i) % model.config().vocabulary;
  const EncodedQuestion question = {{{ids, context - 2, 1}, {ids, context, 1}}, 0};
  const std::vector<double> scores = score_candidates(model, question);
  EXPECT_LT(scores[0], scores[1]) << "three tokens against the last of them";
  EXPECT_NEAR(scores[1], plain_score(model, question.candidates[1]), tolerance(1));
}

TEST_P(TaskScores, AccuracyCountsWhoWins) {
  // The likeliest next token against another one: right, and wrong when gold is the other.
  const TokenIds start = row(0, 6);
  const double* at = logits.data<double>() + 5 * logits.size(2);
  const int64_t best = std::max_element(at, at + logits.size(2)) - at;
  TokenIds likely = start, unlikely = start;
  likely.push_back(best);
  unlikely.push_back(std::min_element(at, at + logits.size(2)) - at);
  const EncodedQuestion right = {{{unlikely, 6, 1}, {likely, 6, 1}}, 1};
  const EncodedQuestion wrong = {{{unlikely, 6, 1}, {likely, 6, 1}}, 0, true};
  // Length turns it round: the unlikely one has a thousand times as many characters.
  const EncodedQuestion by_length = {{{unlikely, 6, 1000}, {likely, 6, 1}}, 0};
  const TaskResult result = evaluate_task(model, {right, wrong, right, by_length});
  EXPECT_EQ(result.questions, 4);
  EXPECT_EQ(result.truncated, 1);
  EXPECT_EQ(result.not_finite, 0);
  EXPECT_DOUBLE_EQ(result.acc.mean, 0.5);
  EXPECT_DOUBLE_EQ(result.acc.standard_error, std::sqrt(0.5 * 0.5 / 3));
  EXPECT_DOUBLE_EQ(result.acc_norm.mean, 0.75);
}

TEST_P(TaskScores, OfEqualCandidatesTheFirstWins) {
  const Candidate same = {row(0, 6), 3, 1};
  EXPECT_EQ(evaluate_task(model, {{{same, same}, 0}}).acc.mean, 1);
  EXPECT_EQ(evaluate_task(model, {{{same, same}, 1}}).acc.mean, 0);
}

TEST_P(TaskScores, ABrokenModelIsWrongAndCounted) {
  const test::ScratchFolder broken;
  fs::copy(folder / "config.json", broken.path() / "config.json");
  NamedTensors tensors;
  const Safetensors file(folder / "model.safetensors");
  for (const std::string& name : file.names()) {
    Tensor tensor = file.tensor(name).to(DType::kF32).clone();
    std::fill_n(tensor.data<float>(), tensor.count(), std::nanf(""));
    tensors.emplace_back(name, tensor);
  }
  write_safetensors(broken.path() / "model.safetensors", tensors);
  const Checkpoint broken_checkpoint(broken.path());
  const TaskResult result =
      evaluate_task(Transformer(broken_checkpoint), {{{{row(0, 6), 3, 1}, {row(1, 6), 3, 1}}, 0}});
  EXPECT_EQ(result.not_finite, 1);
  EXPECT_EQ(result.acc.mean, 0);
  EXPECT_EQ(result.acc_norm.mean, 0);
}

TEST_P(TaskScores, OneQuestionHasNoStandardError) {
  const TaskResult result = evaluate_task(model, {{{{row(0, 6), 3, 1}, {row(1, 6), 3, 1}}, 0}});
  EXPECT_TRUE(std::isnan(result.acc.standard_error));
}

TEST_P(TaskScores, ProgressCountsQuestions) {
  const EncodedQuestion question = {{{row(0, 6), 3, 1}, {row(1, 6), 3, 1}}, 0};
  int64_t last = -1;
  evaluate_task(model, {question, question}, [&](const ProgressUpdate& update) {
    EXPECT_EQ(update.done, last + 1);
    EXPECT_EQ(update.total, 2);
    last = update.done;
  });
  EXPECT_EQ(last, 2);
}

TEST_P(TaskScores, NothingToScoreIsMisuse) {
  EXPECT_THROW(evaluate_task(model, {}), std::invalid_argument);
  EXPECT_THROW(score_candidates(model, EncodedQuestion()), std::invalid_argument);
  EXPECT_THROW(score_candidates(model, Questions()), std::invalid_argument);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, TaskScores, testing::ValuesIn(test::fixture_models()),
                         [](const auto& name) { return name.param; });

}  // namespace
}  // namespace dofla
