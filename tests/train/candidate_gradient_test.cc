#include "dofla/train/candidate_gradient.h"

#include <cmath>

#include <gtest/gtest.h>

#include "dofla/distill/feature_init.h"
#include "dofla/evaluate/tasks.h"
#include "dofla/linear/linear_model.h"
#include "dofla/plan/allocate.h"
#include "tests/support/fixtures.h"
#include "tests/support/random_values.h"
#include "tests/support/slope.h"
#include "tests/support/tolerance.h"

namespace dofla {
namespace {

constexpr Trained kEverything = {.weights = true, .features = true};

// The loss from the scores that evaluation gives, which reads the candidates in another way.
double loss_of(const Transformer& model, const std::vector<EncodedQuestion>& questions) {
  double sum = 0;
  for (const EncodedQuestion& question : questions) {
    const std::vector<double> scores = score_candidates(model, question);
    const double right = scores[static_cast<size_t>(question.gold)];
    double others = 0;
    for (const double score : scores) others += std::exp(score - right);
    sum += std::log(others);
  }
  return sum;
}

std::vector<const EncodedQuestion*> pointers(const std::vector<EncodedQuestion>& questions) {
  std::vector<const EncodedQuestion*> all;
  for (const EncodedQuestion& question : questions) all.push_back(&question);
  return all;
}

struct Result {
  double loss = 0;
  NamedTensors gradients;
};

Result gradient_of(const Transformer& model, const std::vector<EncodedQuestion>& questions,
                   bool recompute = false) {
  Gradients gradients = new_gradients(model, kEverything);
  const double loss = candidate_gradient(model, pointers(questions), 0.5, recompute, gradients);
  return {loss, parameters(gradients)};
}

class CandidateGradient : public testing::TestWithParam<std::string> {
 protected:
  const Checkpoint checkpoint{test::fixtures() / GetParam()};
  const ModelConfig config = checkpoint.config();

  Transformer softmax_model() const {
    Transformer model(checkpoint);
    model.make_trainable();
    return model;
  }
  Transformer linear_model() const {
    const DimensionPlan plan = fixed_plan(identity_of(config), 12);
    Transformer model = make_linear_model(checkpoint, init_features(plan, {}));
    model.make_trainable();
    return model;
  }

  TokenIds ids(int64_t seed, int64_t tokens) const {
    TokenIds all;
    for (int64_t i = 0; i < tokens; ++i) all.push_back((seed + 5 * i * i) % config.vocabulary);
    return all;
  }
  // Answers of several lengths, answers of one token that share all they read, and one that reads
  // no more than the beginning of another.
  std::vector<EncodedQuestion> questions() const {
    TokenIds a = ids(3, 9), b = ids(4, 6), one = ids(7, 8), other = one;
    other.back() = (other.back() + 1) % config.vocabulary;
    const TokenIds beginning(a.begin(), a.begin() + 5);
    return {{{{a, 4, 1}, {b, 3, 1}, {beginning, 4, 1}}, 1}, {{{one, 7, 1}, {other, 7, 1}}, 0}};
  }
  int64_t longest() const { return std::max({config.width, config.mlp_width, config.vocabulary}); }

  void expect_slopes_of_the_loss(const Transformer& model, Trained what, double step) {
    const std::vector<EncodedQuestion> asked = questions();
    Gradients gradients = new_gradients(model, what);
    candidate_gradient(model, pointers(asked), 0.5, false, gradients);
    const NamedTensors found = parameters(gradients);
    ASSERT_FALSE(found.empty());
    test::expect_slope(
        parameters(model, what), found, [&] { return 0.5 * loss_of(model, asked); }, step,
        test::float32_tolerance(longest(), 12 * config.layers, test::norm_of(found)),
        what.features ? "features" : "weights");
  }
};

TEST_P(CandidateGradient, TheLossIsThatOfTheScores) {
  const Transformer softmax = softmax_model(), linear = linear_model();
  for (const Transformer* model : {&softmax, &linear}) {
    const std::vector<EncodedQuestion> asked = questions();
    double magnitude = 0;
    for (const EncodedQuestion& question : asked)
      for (const double score : score_candidates(*model, question))
        magnitude = std::max(magnitude, std::abs(score));
    EXPECT_NEAR(gradient_of(*model, asked).loss, loss_of(*model, asked),
                test::float32_tolerance(longest(), 4 * config.layers + 1, magnitude));
  }
}

TEST_P(CandidateGradient, TheGradientIsItsSlope) {
  expect_slopes_of_the_loss(softmax_model(), {.weights = true}, 1e-4);
  const Transformer linear = linear_model();
  expect_slopes_of_the_loss(linear, {.weights = true}, 1e-4);
  expect_slopes_of_the_loss(linear, {.features = true}, 3e-3);
}

TEST_P(CandidateGradient, OneByOneIsTheSameAsTogether) {
  const Transformer model = linear_model();
  const std::vector<EncodedQuestion> asked = questions();
  const Result together = gradient_of(model, asked);
  Gradients sum = new_gradients(model, kEverything);
  double loss = 0;
  for (const EncodedQuestion& question : asked) {
    const EncodedQuestion* const one = &question;
    loss += candidate_gradient(model, {&one, 1}, 0.5, false, sum);
  }
  EXPECT_NEAR(loss, together.loss, test::float32_tolerance(longest(), 4 * config.layers, loss));
  const NamedTensors found = parameters(sum);
  for (size_t i = 0; i < found.size(); ++i)
    test::expect_near(found[i].second, together.gradients[i].second,
                      test::float32_tolerance(longest(), 12 * config.layers + 2,
                                              test::largest(together.gradients[i].second)),
                      found[i].first);
}

TEST_P(CandidateGradient, RecomputingChangesNothing) {
  const Transformer model = linear_model();
  const Result kept = gradient_of(model, questions()),
               again = gradient_of(model, questions(), true);
  EXPECT_EQ(again.loss, kept.loss);
  for (size_t i = 0; i < kept.gradients.size(); ++i)
    EXPECT_TRUE(test::same_bits(again.gradients[i].second, kept.gradients[i].second))
        << kept.gradients[i].first;
}

INSTANTIATE_TEST_SUITE_P(Fixtures, CandidateGradient, testing::Values("gpt2", "gpt_neox", "qwen3"),
                         [](const auto& model) { return model.param; });

TEST(CandidateGradientMisuse, IsRefused) {
  const Checkpoint checkpoint(test::fixtures() / "gpt2");
  const Transformer model(checkpoint);
  Gradients gradients = new_gradients(model, kEverything);
  const auto run = [&](const std::vector<EncodedQuestion>& questions) {
    candidate_gradient(model, pointers(questions), 1, false, gradients);
  };
  EXPECT_THROW(run({}), std::invalid_argument);
  EXPECT_THROW(run({{{}, 0}}), std::invalid_argument);
  EXPECT_THROW(run({{{{{1, 2}, 1, 1}}, 1}}), std::invalid_argument);
  EXPECT_THROW(run({{{{{1, 2}, 2, 1}}, 0}}), std::invalid_argument);
  EXPECT_THROW(run({{{{{1, 2}, 0, 1}}, 0}}), std::invalid_argument);
}

}  // namespace
}  // namespace dofla
