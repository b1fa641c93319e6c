#include "dofla/generate/generate.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "dofla/linear/linear_model.h"
#include "tests/support/fixtures.h"
#include "tests/support/linear_fixture.h"

namespace dofla {
namespace {

class Generate : public testing::TestWithParam<std::string> {
 protected:
  const fs::path folder = test::fixtures() / GetParam();
  const Checkpoint checkpoint{folder};
  const Transformer model{checkpoint};
  const Safetensors expected{folder / "expected.safetensors"};

  // The expected greedy sequence starts with a prompt: the beginning of the first input.
  TokenIds greedy() const {
    const Tensor tensor = expected.tensor("greedy");
    return {tensor.data<int64_t>(), tensor.data<int64_t>() + tensor.count()};
  }
  TokenIds prompt() const {
    const TokenIds sequence = greedy();
    const Tensor input = expected.tensor("input_ids");
    const auto end = std::mismatch(sequence.begin(), sequence.end(), input.data<int64_t>()).first;
    return {sequence.begin(), end};
  }

  static GenerateOptions options(int64_t max_tokens, double temperature = 0) {
    GenerateOptions options;
    options.max_tokens = max_tokens;
    options.stop_at_end_of_text = false;
    options.sampler = {.temperature = temperature, .top_k = 0, .top_p = 1, .seed = 11};
    return options;
  }
};

TEST_P(Generate, GreedyContinuationEqualsTransformers) {
  const TokenIds sequence = greedy(), start = prompt();
  const auto count = static_cast<int64_t>(sequence.size() - start.size());
  ASSERT_GT(count, 0);
  TokenIds streamed;
  const Generation result =
      generate(model, start, options(count), [&](int64_t id) { streamed.push_back(id); });
  EXPECT_EQ(result.ids,
            TokenIds(sequence.begin() + static_cast<std::ptrdiff_t>(start.size()), sequence.end()));
  EXPECT_EQ(streamed, result.ids);
  EXPECT_EQ(result.stopped, StopReason::kMaxTokens);
  EXPECT_GT(result.tokens_per_second, 0);
}

TEST_P(Generate, StopsWhenTheContextIsFull) {
  const int64_t context = model.config().context;
  const TokenIds start(static_cast<size_t>(context - 3), 1);
  const Generation result = generate(model, start, options(100));
  EXPECT_EQ(result.ids.size(), 4u);
  EXPECT_EQ(result.stopped, StopReason::kContextFull);
  const TokenIds full(static_cast<size_t>(context), 1);
  EXPECT_EQ(generate(model, full, options(100)).ids.size(), 1u);
}

TEST_P(Generate, APromptLongerThanTheContextIsAnError) {
  const TokenIds start(static_cast<size_t>(model.config().context + 1), 1);
  try {
    generate(model, start, options(1));
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("shorten it"), std::string::npos);
  }
}

// A linear student remembers the same amount of any number of tokens: only learnt positions end.
TEST_P(Generate, ALinearStudentGoesOnPastTheContextUnlessPositionsEnd) {
  const int64_t context = model.config().context;
  const Transformer student = make_linear_model(checkpoint, test::ragged_features(model.config()));
  const TokenIds start(static_cast<size_t>(context - 3), 1),
      longer(static_cast<size_t>(context + 1), 1);
  const Generation result = generate(student, start, options(10));
  if (model.weights().position_embedding.defined()) {
    EXPECT_EQ(result.ids.size(), 4u);
    EXPECT_EQ(result.stopped, StopReason::kContextFull);
    EXPECT_THROW(generate(student, longer, options(1)), Error);
  } else {
    EXPECT_EQ(result.ids.size(), 10u);
    EXPECT_EQ(result.stopped, StopReason::kMaxTokens);
    EXPECT_EQ(generate(student, longer, options(2)).ids.size(), 2u);
  }
  const Transformer mixed = make_linear_model(checkpoint, test::mixed_features(model.config()));
  EXPECT_EQ(generate(mixed, start, options(10)).stopped, StopReason::kContextFull);
}

TEST_P(Generate, TheSameSeedGivesTheSameTokens) {
  const Generation a = generate(model, prompt(), options(20, 1.0));
  const Generation b = generate(model, prompt(), options(20, 1.0));
  EXPECT_EQ(a.ids, b.ids);
  GenerateOptions other = options(20, 1.0);
  other.sampler.seed = 12;
  EXPECT_NE(generate(model, prompt(), other).ids, a.ids);
}

// Prompts of different and of equal lengths: softmax attention, linear attention beside it, and
// layers that keep so few keys that some leave while tokens are generated.
TEST_P(Generate, PromptsSideBySideGetWhatEachGetsAlone) {
  const TokenIds whole = greedy();
  const std::vector<TokenIds> prompts = {prompt(), {1}, TokenIds(whole.rbegin(), whole.rend()),
                                         {2},      {3}, whole};
  const Transformer mixed = make_linear_model(checkpoint, test::mixed_features(model.config()));
  FeatureSet features = test::mixed_features(model.config());
  features.exact.assign(features.layers.size(), {.keys = 8, .sinks = 1, .recent = 2, .block = 4});
  const Transformer hybrid = make_linear_model(checkpoint, features);
  for (const Transformer* each : {&model, &mixed, &hybrid})
    for (const int64_t tokens : {1, 6}) {
      const std::vector<TokenIds> together = generate_greedily(*each, prompts, tokens);
      ASSERT_EQ(together.size(), prompts.size());
      for (size_t i = 0; i < prompts.size(); ++i)
        EXPECT_EQ(together[i], generate(*each, prompts[i], options(tokens)).ids) << i;
    }
}

// More tokens than are read at once: long prompts are continued in another batch than short ones.
TEST_P(Generate, ManyPromptsTakeSeveralBatches) {
  const int64_t context = model.config().context, vocabulary = model.config().vocabulary;
  std::vector<TokenIds> prompts;
  for (int64_t i = 0; i < 17000 / context; ++i)
    prompts.emplace_back(static_cast<size_t>(context - 1 - i % 2), i % vocabulary);
  std::vector<int64_t> told;
  const std::vector<TokenIds> together = generate_greedily(
      model, prompts, 2, [&](const ProgressUpdate& update) { told.push_back(update.done); });
  ASSERT_EQ(together.size(), prompts.size());
  EXPECT_GE(told.size(), 2u);
  EXPECT_EQ(told.back(), std::ssize(prompts));
  for (const size_t i : {size_t{0}, size_t{1}, prompts.size() / 2, prompts.size() - 1})
    EXPECT_EQ(together[i], generate(model, prompts[i], options(2)).ids) << i;
}

TEST_P(Generate, PromptsSideBySideMayFillTheContext) {
  const auto context = static_cast<size_t>(model.config().context);
  const std::vector<TokenIds> prompts = {{1, 2}, TokenIds(context - 3, 1)};
  EXPECT_EQ(generate_greedily(model, prompts, 4)[1], generate(model, prompts[1], options(4)).ids);
  EXPECT_THROW(generate_greedily(model, prompts, 5), std::invalid_argument);
  EXPECT_THROW(generate_greedily(model, {{1}, TokenIds(context + 1, 1)}, 1), Error);
}

TEST_P(Generate, RefusesMisuse) {
  EXPECT_THROW(generate_greedily(model, {}, 1), std::invalid_argument);
  EXPECT_THROW(generate_greedily(model, {{1}, {}}, 1), std::invalid_argument);
  EXPECT_THROW(generate_greedily(model, {{1}}, 0), std::invalid_argument);
  EXPECT_THROW(generate(model, {}, options(1)), std::invalid_argument);
  EXPECT_THROW(generate(model, {1}, options(0)), std::invalid_argument);
  EXPECT_THROW(generate(model, {model.config().vocabulary}, options(1)), std::invalid_argument);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Generate, testing::ValuesIn(test::fixture_models()),
                         [](const auto& name) { return name.param; });

// wiki-mini ends articles: with sampling it reaches the end-of-text token within a few contexts.
TEST(GenerateBuiltIn, StopsAtTheEndOfText) {
  const Checkpoint checkpoint(test::assets() / "wiki-mini");
  const Transformer model(checkpoint);
  const int64_t end = model.config().end_of_text.value();
  GenerateOptions options;
  options.max_tokens = model.config().context;
  bool stopped = false;
  for (options.sampler.seed = 0; options.sampler.seed < 20 && !stopped; ++options.sampler.seed) {
    const Generation result = generate(model, {end}, options);
    stopped = result.stopped == StopReason::kEndOfText;
    EXPECT_EQ(result.ids.back() == end, stopped);
    EXPECT_EQ(std::count(result.ids.begin(), result.ids.end(), end), stopped ? 1 : 0);
  }
  EXPECT_TRUE(stopped);
}

}  // namespace
}  // namespace dofla
