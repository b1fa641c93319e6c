// Whole models against Transformers: every folder in the fixtures that holds a model.
#include "dofla/model/transformer.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "dofla/ops/cross_entropy.h"
#include "tests/support/fixtures.h"
#include "tests/support/tolerance.h"

namespace dofla {
namespace {

class FixtureModel : public testing::TestWithParam<std::string> {
 protected:
  const fs::path folder = test::fixtures() / GetParam();
  const Checkpoint checkpoint{folder};
  const Safetensors expected{folder / "expected.safetensors"};
  const Transformer model{checkpoint};
  const Tensor ids = expected.tensor("input_ids");

  // Sums feed into each other four times a layer (projection, attention, up, down), then the head.
  double tolerance(const Tensor& reference, int64_t layers) const {
    const ModelConfig& config = model.config();
    const int64_t longest = std::max({config.width, config.mlp_width, ids.size(1)});
    return test::float32_tolerance(longest, 4 * layers + 1, test::largest(reference));
  }

  Tensor all_logits(const Tensor& hidden) const {
    return model.logits(hidden.reshape({ids.count(), model.config().width}))
        .reshape({ids.size(0), ids.size(1), model.config().vocabulary});
  }
};

TEST_P(FixtureModel, LogitsAndHeadsEqualTransformers) {
  ForwardOptions options;
  int64_t layers_seen = 0;
  options.observer = [&](int64_t layer, const Tensor& q, const Tensor& k, const Tensor& v) {
    EXPECT_EQ(layer, layers_seen++);
    for (const auto& [name, found] : {std::pair{"q", &q}, {"k", &k}, {"v", &v}}) {
      const std::string key = fmt::format("{}.{}", name, layer);
      const Tensor reference = expected.tensor(key);
      test::expect_near(*found, reference, tolerance(reference, layer + 1), key);
    }
  };
  const Tensor logits = all_logits(model.forward(ids, options));
  EXPECT_EQ(layers_seen, model.config().layers);
  const Tensor reference = expected.tensor("logits");
  test::expect_near(logits, reference, tolerance(reference, layers_seen), "logits");
}

TEST_P(FixtureModel, DecodingTokenByTokenGivesTheSameLogits) {
  const Tensor whole = model.forward(ids);
  DecodeState state = model.new_state();
  const int64_t batch = ids.size(0), tokens = ids.size(1), width = model.config().width;
  Tensor steps({batch, tokens, width});
  for (int64_t t = 0; t < tokens;) {
    const int64_t count = t == 0 ? std::min<int64_t>(7, tokens) : 1;  // a prompt, then one by one
    Tensor part({batch, count}, DType::kI64);
    for (int64_t b = 0; b < batch; ++b)
      std::copy_n(ids.data<int64_t>() + b * tokens + t, count, part.data<int64_t>() + b * count);
    const Tensor hidden = model.forward(part, {.state = &state, .observer = {}});
    for (int64_t b = 0; b < batch; ++b)
      std::copy_n(hidden.data<float>() + b * count * width, count * width,
                  steps.data<float>() + (b * tokens + t) * width);
    t += count;
  }
  EXPECT_EQ(state.longest(), tokens);
  EXPECT_GT(state.bytes(), 0);
  test::expect_near(steps, whole, tolerance(whole, model.config().layers), "hidden");
}

TEST_P(FixtureModel, GreedyContinuationIsExact) {
  const Tensor greedy = expected.tensor("greedy");
  // The expected sequence starts with a prompt that is the beginning of the first input.
  const int64_t* sequence = greedy.data<int64_t>();
  int64_t prompt = 0;
  while (prompt < std::min(greedy.size(1), ids.size(1)) &&
         sequence[prompt] == ids.data<int64_t>()[prompt])
    ++prompt;
  ASSERT_GT(prompt, 0);
  ASSERT_LT(prompt, greedy.size(1));
  DecodeState state = model.new_state();
  std::vector<int64_t> found(sequence, sequence + prompt);
  Tensor next = greedy.reshape({greedy.size(1)}).slice(0, prompt).reshape({1, prompt});
  while (static_cast<int64_t>(found.size()) < greedy.size(1)) {
    const Tensor hidden = model.forward(next, {.state = &state, .observer = {}});
    const Tensor last =
        hidden.reshape({hidden.size(1), hidden.size(2)}).slice(hidden.size(1) - 1, hidden.size(1));
    const Tensor logits = model.logits(last);
    const float* row = logits.data<float>();
    found.push_back(std::max_element(row, row + logits.count()) - row);
    next = Tensor({1, 1}, DType::kI64);
    next.data<int64_t>()[0] = found.back();
  }
  EXPECT_EQ(found, std::vector<int64_t>(sequence, sequence + greedy.size(1)));
}

TEST_P(FixtureModel, CrossEntropyEqualsTransformers) {
  const int64_t batch = ids.size(0), tokens = ids.size(1), width = model.config().width;
  const Tensor hidden = model.forward(ids);
  double sum = 0;
  for (int64_t b = 0; b < batch; ++b) {
    const Tensor rows = hidden.slice(b, b + 1).reshape({tokens, width}).slice(0, tokens - 1);
    const Tensor row_ids = ids.slice(b, b + 1).reshape({tokens});
    const Tensor losses = cross_entropy(rows, model.weights().head, row_ids.slice(1, tokens));
    for (int64_t t = 0; t < losses.count(); ++t) sum += losses.data<float>()[t];
  }
  const double loss = sum / static_cast<double>(batch * (tokens - 1));
  const Tensor reference = expected.tensor("loss");
  EXPECT_NEAR(loss, reference.data<float>()[0],
              tolerance(expected.tensor("logits"), model.config().layers));
}

TEST_P(FixtureModel, AForkGoesItsOwnWay) {
  DecodeState state = model.new_state();
  const Tensor prompt = ids.reshape({ids.count()}).slice(0, 5).reshape({1, 5});
  const Tensor next = ids.reshape({ids.count()}).slice(5, 6).reshape({1, 1});
  model.forward(prompt, {.state = &state, .observer = {}});
  DecodeState fork = state.fork();
  const Tensor a = model.forward(next, {.state = &state, .observer = {}});
  model.forward(next, {.state = &state, .observer = {}});
  const Tensor b = model.forward(next, {.state = &fork, .observer = {}});
  test::expect_near(b, a, 0, "hidden after a fork");
}

TEST_P(FixtureModel, AForkOfSeveralCopiesIsABatch) {
  DecodeState state = model.new_state();
  const Tensor flat = ids.reshape({ids.count()});
  model.forward(flat.slice(0, 5).reshape({1, 5}), {.state = &state, .observer = {}});
  DecodeState batch = state.fork(2);
  const Tensor both =
      model.forward(flat.slice(5, 11).reshape({2, 3}), {.state = &batch, .observer = {}});
  for (int64_t i = 0; i < 2; ++i) {
    DecodeState one = state.fork();
    const Tensor next = flat.slice(5 + 3 * i, 8 + 3 * i).reshape({1, 3});
    const Tensor alone = model.forward(next, {.state = &one, .observer = {}});
    test::expect_near(both.slice(i, i + 1), alone, tolerance(alone, model.config().layers),
                      "hidden of a copy");
  }
}

TEST_P(FixtureModel, RefusesIdsAndLengthsItCannotTake) {
  Tensor bad = Tensor::zeros({1, 2}, DType::kI64);
  bad.data<int64_t>()[1] = model.config().vocabulary;
  EXPECT_THROW(model.forward(bad), std::invalid_argument);
  bad.data<int64_t>()[1] = -1;
  EXPECT_THROW(model.forward(bad), std::invalid_argument);
  const Tensor long_ids = Tensor::zeros({1, model.config().context + 1}, DType::kI64);
  EXPECT_THROW(model.forward(long_ids), std::invalid_argument);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, FixtureModel, testing::ValuesIn(test::fixture_models()),
                         [](const auto& model) { return model.param; });

}  // namespace
}  // namespace dofla
