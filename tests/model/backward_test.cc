// Gradients of whole models: against PyTorch's for every parameter of every fixture, and against
// the slope of the loss for linear attention.
#include <algorithm>

#include <gtest/gtest.h>

#include "dofla/distill/feature_init.h"
#include "dofla/linear/linear_model.h"
#include "dofla/ops/cross_entropy.h"
#include "dofla/plan/allocate.h"
#include "tests/support/fixtures.h"
#include "tests/support/linear_fixture.h"
#include "tests/support/random_values.h"
#include "tests/support/slope.h"
#include "tests/support/tolerance.h"

namespace dofla {
namespace {

constexpr Trained kEverything = {.weights = true, .features = true};

// Every token but the last of its sequence predicts the next one, all with the same weight.
struct NextTokens {
  explicit NextTokens(const Tensor& ids)
      : targets(Tensor::zeros({ids.count()}, DType::kI64)), weight(Tensor::zeros({ids.count()})) {
    const int64_t batch = ids.size(0), tokens = ids.size(1);
    for (int64_t i = 0; i < batch * tokens; ++i)
      if (i % tokens + 1 < tokens) {
        targets.data<int64_t>()[i] = ids.data<int64_t>()[i + 1];
        weight.data<float>()[i] = 1 / static_cast<float>(batch * (tokens - 1));
      }
  }

  double mean(const Tensor& losses) const {
    double sum = 0;
    for (int64_t i = 0; i < losses.count(); ++i)
      sum += static_cast<double>(losses.data<float>()[i]) * weight.data<float>()[i];
    return sum;
  }

  Tensor targets, weight;  // [B·T]
};

double loss_of(const Transformer& model, const Tensor& ids) {
  const NextTokens next(ids);
  const Tensor hidden = model.forward(ids).reshape({ids.count(), model.config().width});
  return next.mean(cross_entropy(hidden, model.weights().head, next.targets));
}

double loss_and_gradients(const Transformer& model, const Tensor& ids, bool recompute,
                          Gradients& gradients) {
  const NextTokens next(ids);
  Tape tape;
  tape.recompute = recompute;
  ForwardOptions options;
  options.tape = &tape;
  const Tensor hidden = model.forward(ids, options);
  const CrossEntropyGradients last =
      cross_entropy_backward(hidden.reshape({ids.count(), model.config().width}),
                             model.weights().head, next.targets, next.weight, gradients.head());
  model.backward(tape, last.x.reshape(hidden.shape()), gradients);
  return next.mean(last.loss);
}

NamedTensors gradients_of(const Transformer& model, const Tensor& ids, bool recompute = false,
                          Trained what = kEverything) {
  Gradients gradients = new_gradients(model, what);
  loss_and_gradients(model, ids, recompute, gradients);
  return parameters(gradients);
}

void expect_same_bits(const NamedTensors& a, const NamedTensors& b) {
  ASSERT_EQ(a.size(), b.size());
  ASSERT_FALSE(a.empty());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].first, b[i].first);
    EXPECT_TRUE(test::same_bits(a[i].second, b[i].second)) << a[i].first;
  }
}

class FixtureGradients : public testing::TestWithParam<std::string> {
 protected:
  const fs::path folder = test::fixtures() / GetParam();
  const Checkpoint checkpoint{folder};
  const Safetensors expected{folder / "expected.safetensors"};
  const Tensor ids = expected.tensor("input_ids");
  const Transformer model{checkpoint};

  Transformer linear_model(FeatureMap map = FeatureMap::kPrf) const {
    const ModelConfig& config = checkpoint.config();
    const DimensionPlan plan =
        fixed_plan(identity_of(config), 12, feature_heads(map, config.heads, config.kv_heads));
    return make_linear_model(checkpoint, init_features(plan, {.map = map}));
  }
};

// Sums feed into each other four times a layer on the way there and twice that on the way back,
// besides the head.
TEST_P(FixtureGradients, EqualTransformers) {
  const ModelConfig& config = model.config();
  const int64_t longest =
      std::max({config.width, config.mlp_width, config.vocabulary, ids.count()});
  Gradients gradients = new_gradients(model, kEverything);
  const double loss = loss_and_gradients(model, ids, false, gradients);
  const Tensor expected_loss = expected.tensor("loss");
  EXPECT_NEAR(loss, expected_loss.data<float>()[0],
              test::float32_tolerance(longest, 4 * config.layers + 1,
                                      test::largest(expected.tensor("logits"))));
  int64_t compared = 0;
  for (const auto& [name, found] : parameters(gradients)) {
    // Transformers renames GPT-NeoX's head while it loads.
    const std::string known = name == "embed_out.weight" ? "lm_head.weight" : name;
    const Tensor reference = expected.tensor("grad." + known);
    test::expect_near(
        found, reference,
        test::float32_tolerance(longest, 12 * config.layers + 2, test::largest(reference)), name);
    ++compared;
  }
  const auto names = expected.names();
  EXPECT_EQ(compared, std::count_if(names.begin(), names.end(), [](const std::string& name) {
              return name.starts_with("grad.");
            }));
}

TEST_P(FixtureGradients, OfThePartThatLearnsAreTheSame) {
  const Transformer linear = linear_model();
  for (const Transformer* one : {&model, &linear}) {
    constexpr Trained kPart = {.attention = true, .features = true};
    const NamedTensors part = gradients_of(*one, ids, false, kPart);
    NamedTensors all = gradients_of(*one, ids);
    std::erase_if(all, [&](const auto& named) {
      return std::ranges::find(part, named.first, &NamedTensors::value_type::first) == part.end();
    });
    expect_same_bits(part, all);
    ASSERT_EQ(part.size(), parameters(*one, kPart).size());
    for (const auto& [name, tensor] : part)
      EXPECT_TRUE(name.find("att") != name.npos || name.starts_with("linear_attention.")) << name;
  }
}

TEST_P(FixtureGradients, RecomputingTheBlocksChangesNothing) {
  expect_same_bits(gradients_of(model, ids, true), gradients_of(model, ids));
  const Transformer linear = linear_model();
  expect_same_bits(gradients_of(linear, ids, true), gradients_of(linear, ids));
}

TEST_P(FixtureGradients, DoNotDependOnTheNumberOfThreads) {
  const Transformer linear = linear_model();
  for (const Transformer* one : {&model, &linear}) {
    const auto compute = [&] { return gradients_of(*one, ids); };
    expect_same_bits(test::with_threads(1, compute), test::with_threads(5, compute));
  }
}

TEST_P(FixtureGradients, OfFeaturesAloneAreTheSame) {
  const Transformer linear = linear_model();
  NamedTensors all = gradients_of(linear, ids);
  const NamedTensors features = gradients_of(linear, ids, false, {.features = true});
  ASSERT_EQ(features.size(), static_cast<size_t>(2 * model.config().layers));
  all.erase(all.begin(), all.end() - static_cast<int64_t>(features.size()));
  expect_same_bits(features, all);
}

TEST_P(FixtureGradients, AddUpUntilTheyAreCleared) {
  Gradients gradients = new_gradients(model, kEverything);
  loss_and_gradients(model, ids, false, gradients);
  const NamedTensors once = gradients_of(model, ids);
  expect_same_bits(parameters(gradients), once);
  loss_and_gradients(model, ids, false, gradients);
  // Both passes add long sums to the same numbers: equal to twice the first up to rounding.
  for (size_t i = 0; i < once.size(); ++i) {
    Tensor twice = once[i].second.clone();
    for (int64_t j = 0; j < twice.count(); ++j) twice.data<float>()[j] *= 2;
    test::expect_near(parameters(gradients)[i].second, twice,
                      test::float32_tolerance(ids.count(), 1, test::largest(twice)), once[i].first);
  }
  gradients.clear();
  for (const auto& [name, tensor] : parameters(gradients))
    EXPECT_EQ(test::largest(tensor), 0) << name;
}

// Also what has no elements: by its address a gradient's layer is found.
TEST_P(FixtureGradients, LieOneAfterAnotherInOneMemory) {
  for (const Trained what : {kEverything, Trained{.attention = true}, Trained{.features = true}}) {
    const Transformer linear = linear_model();
    const Gradients gradients = new_gradients(linear, what);
    const auto begin = reinterpret_cast<uintptr_t>(gradients.memory.raw());
    std::vector<std::pair<uintptr_t, uintptr_t>> parts;
    for (const auto& [name, tensor] : parameters(gradients)) {
      const auto at = reinterpret_cast<uintptr_t>(tensor.raw());
      EXPECT_EQ((at - begin) % 256, 0u) << name;
      parts.emplace_back(at, at + static_cast<uintptr_t>(tensor.bytes()));
    }
    std::ranges::sort(parts);
    for (size_t i = 0; i < parts.size(); ++i) {
      const uintptr_t next = i + 1 < parts.size()
                                 ? parts[i + 1].first
                                 : begin + static_cast<uintptr_t>(gradients.memory.bytes());
      EXPECT_LE(parts[i].second, next);
      EXPECT_LT(next - parts[i].second, 512u);
      if (i > 0) {
        EXPECT_GT(parts[i].first, parts[i - 1].first);
      }
    }
    EXPECT_EQ(parts.front().first, begin);
  }
}

TEST_P(FixtureGradients, ATapeTakesWholeSequencesOnly) {
  Tape tape;
  DecodeState state = model.new_state();
  EXPECT_THROW(model.forward(ids, {.state = &state, .observer = {}, .tape = &tape}),
               std::invalid_argument);
  EXPECT_THROW(model.forward(ids, {.observer = {}, .heads_only = true, .tape = &tape}),
               std::invalid_argument);
  Gradients gradients = new_gradients(model, kEverything);
  const Tensor grad = Tensor::zeros({ids.size(0), ids.size(1), model.config().width});
  EXPECT_THROW(model.backward(tape, grad, gradients), std::invalid_argument);
  model.forward(ids, {.observer = {}, .tape = &tape});
  EXPECT_THROW(model.backward(tape, grad.slice(0, 1), gradients), std::invalid_argument);
}

TEST_P(FixtureGradients, MappedWeightsCannotBeWritten) {
  NamedTensors weights = parameters(model, {.weights = true});
  EXPECT_THROW(weights[0].second.mutable_raw(), std::invalid_argument);
}

// Against the slope of the float32 loss itself.
void expect_slope(const Transformer& model, const Tensor& ids, const NamedTensors& along,
                  const NamedTensors& gradients, double step, const std::string& what) {
  const double rounding =
      test::float32_tolerance(ids.count(), 12 * model.config().layers, test::norm_of(gradients));
  test::expect_slope(
      along, gradients, [&] { return loss_of(model, ids); }, step, rounding, what);
}

TEST_P(FixtureGradients, OfALinearModelAreTheSlopesOfItsLoss) {
  for (const auto& [map, parts] : {std::pair(FeatureMap::kPrf, 2), {FeatureMap::kUntied, 4}}) {
    Transformer linear = linear_model(map);
    linear.make_trainable();
    const NamedTensors features = parameters(linear, {.features = true});
    const NamedTensors gradients = gradients_of(linear, ids, false, {.features = true});
    ASSERT_EQ(features.size(), static_cast<size_t>(parts * model.config().layers));
    for (size_t i = 0; i < features.size(); ++i)
      expect_slope(linear, ids, {features[i]}, {gradients[i]}, 3e-3, features[i].first);
    expect_slope(linear, ids, parameters(linear, {.weights = true}),
                 gradients_of(linear, ids, false, {.weights = true}), 1e-4, "all weights");
  }
}

// A window, whose keys leave at the same tokens wherever the parameters are.
TEST_P(FixtureGradients, OfAHybridModelAreTheSlopesOfItsLoss) {
  const FeatureSet set =
      test::hybrid_features(model.config(), FeatureMap::kUntied, KeyPolicy::kRecent);
  Transformer hybrid = make_linear_model(checkpoint, set);
  hybrid.make_trainable();
  const NamedTensors features = parameters(hybrid, {.features = true});
  const NamedTensors gradients = gradients_of(hybrid, ids, false, {.features = true});
  ASSERT_EQ(features.size(), static_cast<size_t>(4 * (model.config().layers - 1)));
  for (size_t i = 0; i < features.size(); ++i)
    expect_slope(hybrid, ids, {features[i]}, {gradients[i]}, 3e-3, features[i].first);
  expect_slope(hybrid, ids, parameters(hybrid, {.weights = true}),
               gradients_of(hybrid, ids, false, {.weights = true}), 1e-4, "all weights");
  expect_same_bits(gradients_of(hybrid, ids, true), gradients_of(hybrid, ids));
}

INSTANTIATE_TEST_SUITE_P(Fixtures, FixtureGradients, testing::ValuesIn(test::fixture_models()),
                         [](const auto& model) { return model.param; });

}  // namespace
}  // namespace dofla
