// What fine-tuning learns from: losses as evaluation has them, and parts that add up.
#include "dofla/train/training_examples.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include <gtest/gtest.h>

#include "dofla/evaluate/next_token.h"
#include "dofla/ops/divergence.h"
#include "tests/support/finetune_case.h"
#include "tests/support/tolerance.h"

namespace dofla {
namespace {

class TrainingExamplesOfText : public testing::Test, protected test::FinetuneCase {
 protected:
  static std::vector<TokenIds> some_windows(size_t count) {
    std::vector<TokenIds> windows(count, TokenIds(24));
    for (size_t i = 0; i < count; ++i)
      for (size_t t = 0; t < windows[i].size(); ++t)
        windows[i][t] = static_cast<int64_t>(3 + (i * 24 + t) * 131 % 500);
    return windows;
  }
  const std::vector<TokenIds> windows = some_windows(5);
  const TrainingExamples text = examples_of(windows);
  const Transformer model = linear_model();
};

TEST_F(TrainingExamplesOfText, HaveTheLossThatEvaluationReports) {
  Gradients gradients = new_gradients(model, kEverything);
  const std::vector<int64_t> which = {4, 1, 2};
  const double loss = text.differentiate(model, which, 1, {}, gradients);
  double expected = 0;
  for (const int64_t i : which)
    expected += next_token_loss(model, windows[static_cast<size_t>(i)]).loss;
  const ModelConfig& config = model.config();
  EXPECT_NEAR(loss, expected,
              test::float32_tolerance(config.vocabulary, 4 * config.layers, expected));
}

TEST_F(TrainingExamplesOfText, PartsAddUpToTheWhole) {
  const std::vector<int64_t> which = {0, 1, 2, 3, 4};
  const auto differentiate = [&](int64_t part_tokens) {
    Gradients gradients = new_gradients(model, kEverything);
    const double loss = text.differentiate(model, which, 0.2, {part_tokens, false}, gradients);
    return std::pair(loss, parameters(gradients));
  };
  const auto [whole_loss, whole] = differentiate(1 << 20);
  const ModelConfig& config = model.config();
  const int64_t longest = std::max({config.vocabulary, config.mlp_width, int64_t{5 * 24}});
  for (const int64_t part_tokens : {1, 48}) {  // a window at a time; two, two and one
    const auto [loss, gradients] = differentiate(part_tokens);
    EXPECT_NEAR(loss, whole_loss, test::float32_tolerance(longest, 4 * config.layers, whole_loss));
    for (size_t i = 0; i < whole.size(); ++i)
      test::expect_near(
          gradients[i].second, whole[i].second,
          test::float32_tolerance(longest, 12 * config.layers, test::largest(whole[i].second)),
          whole[i].first);
  }
}

// In one part or several: every layer once, from the last to the first, and then nothing of it
// changes any more.
TEST_F(TrainingExamplesOfText, LayersAreFinishedWhenTheyAreSaidToBe) {
  for (const int64_t part_tokens : {1, 48, 1 << 20}) {
    Gradients gradients = new_gradients(model, kEverything);
    const NamedTensors all = parameters(gradients);
    const std::vector<int64_t> layers = layers_of(gradients);
    ASSERT_EQ(layers.size(), all.size());
    std::vector<int64_t> told;
    std::vector<Tensor> complete(all.size());
    gradients.finished = [&](int64_t layer) {
      told.push_back(layer);
      for (size_t i = 0; i < all.size(); ++i)
        if (layers[i] == layer) complete[i] = all[i].second.clone();
    };
    text.differentiate(model, std::vector<int64_t>{0, 1, 2, 3, 4}, 0.2, {part_tokens, false},
                       gradients);
    ASSERT_EQ(std::ssize(told), model.config().layers);
    EXPECT_TRUE(std::ranges::is_sorted(told, std::greater()));
    for (size_t i = 0; i < all.size(); ++i) {
      if (layers[i] >= 0) {
        EXPECT_TRUE(test::same_bits(complete[i], all[i].second)) << all[i].first;
      }
      // Only embeddings, the head and the last norm are of no layer.
      const bool numbered = all[i].first.find_first_of("0123456789") != std::string::npos;
      EXPECT_EQ(layers[i] >= 0, numbered) << all[i].first;
    }
  }
}

TEST_F(TrainingExamplesOfText, WithATeacherAreItsDivergence) {
  const Transformer teacher = load_model(checkpoint);
  const TrainingExamples imitation = examples_of(windows, &teacher);
  const std::vector<int64_t> which = {3, 0};
  Gradients gradients = new_gradients(model, kEverything);
  const double loss = imitation.differentiate(model, which, 1, {1, false}, gradients);
  double expected = 0;  // over all tokens of a window, the last among them
  for (const int64_t i : which) {
    const TokenIds& window = windows[static_cast<size_t>(i)];
    const auto tokens = static_cast<int64_t>(window.size());
    const auto logits = [&](const Transformer& of) {
      return of.logits(of.forward(to_tensor(window)).reshape({tokens, of.config().width}));
    };
    const Tensor targets = Tensor::zeros({tokens}, DType::kI64);
    for (const TokenStatistics& token : token_statistics(logits(teacher), logits(model), targets))
      expected += token.kl / static_cast<double>(tokens);
  }
  const ModelConfig& config = model.config();
  const double relative = test::float32_tolerance(config.vocabulary, 4 * config.layers, 1);
  EXPECT_GT(loss, 0.1);
  EXPECT_NEAR(loss, expected,
              relative * (expected + std::log(static_cast<double>(config.vocabulary))));
  // A student that is its teacher has nothing to learn.
  Gradients none = new_gradients(teacher, {.weights = true});
  EXPECT_LT(imitation.differentiate(teacher, which, 1, {}, none), relative);
}

TEST_F(TrainingExamplesOfText, ATeacherIsImitated) {
  const Transformer teacher = load_model(checkpoint);
  FinetuneOptions options;
  options.epochs = 20;
  options.batch = 5;
  options.learning_rate = 2e-3;
  options.feature_rate = 10;
  options.keep_best = false;
  Transformer learner = linear_model();
  const FinetuneResult result = finetune(learner, examples_of(windows, &teacher), options,
                                         [](const Transformer&) { return Judgement(); });
  EXPECT_LT(result.loss.back(), 0.2 * result.loss.front());
}

TEST_F(TrainingExamplesOfText, AreLearntByHeart) {
  FinetuneOptions options;
  options.epochs = 40;
  options.batch = 5;
  options.learning_rate = 5e-3;
  const Judge judge = [&](const Transformer& now) {
    double loss = 0;
    for (const TokenIds& window : windows) loss += next_token_loss(now, window).loss;
    return Judgement{.score = -loss / static_cast<double>(windows.size()), .answers = {}};
  };
  Transformer learner = linear_model();
  const FinetuneResult result = finetune(learner, text, options, judge);
  EXPECT_EQ(result.skipped(), 0);
  EXPECT_EQ(judge(learner).score, result.kept_judgement().score);
  EXPECT_LT(-result.epochs.back().score, 0.1 * -result.before.score);
}

TEST_F(TrainingExamplesOfText, TellTextsApart) {
  std::vector<TokenIds> other = windows;
  other[3][7] += 1;
  EXPECT_EQ(examples_of(windows).about, text.about);
  EXPECT_NE(examples_of(other).about, text.about);
  other[3].pop_back();
  EXPECT_THROW(examples_of(other), std::invalid_argument);
}

}  // namespace
}  // namespace dofla
