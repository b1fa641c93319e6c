#include "dofla/train/optimizer.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "dofla/model/next_token_gradient.h"
#include "dofla/model/transformer.h"
#include "tests/reference/attention_case.h"
#include "tests/reference/compare.h"
#include "tests/support/expect_error.h"
#include "tests/support/fixtures.h"
#include "tests/support/random_values.h"

namespace dofla {
namespace {

using reference::expect_near;
using reference::to_doubles;

constexpr double kEps = std::numeric_limits<float>::epsilon();

Tensor filled(const Shape& shape, float value) {
  Tensor tensor(shape);
  std::fill_n(tensor.data<float>(), tensor.count(), value);
  return tensor;
}

// Three steps on ½ |p − target|², as the fixture took them with PyTorch: as a matrix, which decays.
void expect_fixture_steps(const std::string& kind, const OptimizerOptions& options) {
  const Safetensors fixture(test::fixtures() / "optimizer.safetensors");
  const Tensor target = fixture.tensor("target");
  Tensor p = fixture.tensor("p0").clone().reshape({1, target.count()});
  Optimizer optimizer({{"p", p}}, options);
  for (int step = 1; step <= 3; ++step) {
    Tensor gradient(p.shape());
    double size = 1;
    for (int64_t i = 0; i < p.count(); ++i) {
      const float now = p.data<float>()[i];
      gradient.data<float>()[i] = now - target.data<float>()[i];
      size = std::max(size, static_cast<double>(std::abs(now)));
    }
    EXPECT_TRUE(optimizer.step({{"p", gradient}}, 0.02));
    // Each step rounds the parameter a few times, and the step of size lr to a few ulp.
    expect_near(p, to_doubles(fixture.tensor(kind + ".p" + std::to_string(step))),
                step * kEps * (2 * size + 8 * 0.02), kind);
  }
}

TEST(Optimizer, TakesTheStepsOfPyTorch) {
  expect_fixture_steps("adam", {.clip = 0});
  expect_fixture_steps("adamw", {.beta2 = 0.95, .weight_decay = 0.1, .clip = 0});
}

TEST(Optimizer, DecaysMatricesOnly) {
  const NamedTensors parameters = {{"wte.weight", filled({2, 3}, 1)},
                                   {"ln_f.weight", filled({3}, 1)},
                                   {feature_name(0, "z"), filled({2, 3}, 1)},
                                   {feature_name(0, "log_alpha"), filled({2}, 1)}};
  NamedTensors gradients;
  for (const auto& [name, tensor] : parameters)
    gradients.emplace_back(name, Tensor::zeros(tensor.shape()));
  Optimizer optimizer(parameters, {.weight_decay = 0.5});
  optimizer.step(gradients, 0.5);
  for (const auto& [name, tensor] : parameters)
    EXPECT_EQ(tensor.data<float>()[1], name == "wte.weight" ? 0.75f : 1.0f) << name;
}

// Adam itself does not see the scale of its gradients; what it remembers of them does.
TEST(Optimizer, ClipsByTheNormOfAllGradients) {
  const auto squares = [](double clip) {
    Optimizer optimizer({{"a", filled({3}, 0)}, {"b", filled({1}, 0)}}, {.clip = clip});
    optimizer.step({{"a", filled({3}, 4)}, {"b", filled({1}, 4)}}, 0.1);
    NamedTensors saved;
    optimizer.save(saved);
    const auto found =
        std::ranges::find(saved, "moments.a.square", &NamedTensors::value_type::first);
    return static_cast<double>(found->second.data<float>()[0]);
  };
  const double whole = squares(0);  // the norm is 8
  EXPECT_NEAR(whole, 0.001 * 16, 4 * kEps);
  EXPECT_EQ(squares(8), whole);
  EXPECT_NEAR(squares(2), whole / 16, 4 * kEps * whole);
}

TEST(Optimizer, SkipsAStepThatIsNotFiniteAndCountsIt) {
  Tensor p = filled({4}, 1);
  Optimizer optimizer({{"p", p}}, {});
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Tensor gradient = filled({4}, 1);
    gradient.data<float>()[2] = bad;
    EXPECT_FALSE(optimizer.step({{"p", gradient}}, 0.1));
  }
  EXPECT_EQ(optimizer.skipped(), 2);
  EXPECT_EQ(to_doubles(p), std::vector<double>(4, 1));
  // The next one is the first, with the bias correction of step 1: it goes as far as the rate. In
  // float32, 1 − beta2 is off by kEps / 2, and what counts is its root.
  EXPECT_TRUE(optimizer.step({{"p", filled({4}, 1)}}, 0.25));
  EXPECT_NEAR(p.data<float>()[0], 0.75, 0.25 * kEps / (1 - 0.999));
}

class OptimizerFile : public testing::TestWithParam<MomentType> {};

TEST_P(OptimizerFile, IsGoneOnFromInTheSameBits) {
  const OptimizerOptions options = {.weight_decay = 0.1, .moments = GetParam(), .seed = 5};
  const test::ScratchFolder scratch;
  const fs::path file = scratch.path() / "optimizer";
  Random random(3);
  Tensor p = test::normal_tensor({5, 7}, random), q = test::normal_tensor({9}, random);
  std::vector<NamedTensors> gradients;
  for (int i = 0; i < 6; ++i)
    gradients.push_back(
        {{"p", test::normal_tensor({5, 7}, random)}, {"q", test::normal_tensor({9}, random)}});
  gradients[1][1].second.data<float>()[0] = std::nanf("");
  Optimizer whole({{"p", p}, {"q", q}}, options);
  const auto copies = [&](size_t i) {  // a step clips its gradients
    NamedTensors copy = gradients[i];
    for (auto& [name, tensor] : copy) tensor = tensor.clone();
    return copy;
  };
  for (size_t i = 0; i < 6; ++i) {
    whole.step(copies(i), 0.1);
    if (i != 2) continue;
    NamedTensors saved;
    whole.save(saved);
    write_safetensors(file, saved);
  }
  const NamedTensors fresh = {{"p", filled({5, 7}, 0)}, {"q", filled({9}, 0)}};
  Optimizer resumed(fresh, options);
  resumed.restore(Safetensors(file));
  EXPECT_EQ(resumed.skipped(), 1);
  for (size_t i = 3; i < 6; ++i) resumed.step(copies(i), 0.1);
  EXPECT_TRUE(test::same_bits(fresh[0].second, p));
  EXPECT_TRUE(test::same_bits(fresh[1].second, q));

  Optimizer other({{"p", filled({7, 5}, 0)}}, {});
  test::expect_error([&] { other.restore(Safetensors(file)); },
                     {"p: expected F32 [7, 5]", "[5, 7]"});
  Optimizer more({{"r", filled({1}, 0)}}, {});
  test::expect_error([&] { more.restore(Safetensors(file)); }, {"optimizer", "r"});
  const bool small = GetParam() == MomentType::kBFloat16;
  Optimizer of_other_type(fresh, {.moments = small ? MomentType::kFloat32 : MomentType::kBFloat16});
  test::expect_error([&] { of_other_type.restore(Safetensors(file)); },
                     {"moments.p.mean: expected", small ? "found BF16" : "found F32"});
}

INSTANTIATE_TEST_SUITE_P(Moments, OptimizerFile,
                         testing::Values(MomentType::kFloat32, MomentType::kBFloat16),
                         [](const auto& type) { return std::string(name(type.param)); });

TEST(Optimizer, RefusesGradientsOfSomethingElse) {
  Optimizer optimizer({{"p", filled({4}, 1)}}, {});
  EXPECT_THROW(optimizer.step({}, 0.1), std::invalid_argument);
  EXPECT_THROW(optimizer.step({{"q", filled({4}, 1)}}, 0.1), std::invalid_argument);
  EXPECT_THROW(optimizer.step({{"p", filled({5}, 1)}}, 0.1), std::invalid_argument);
  EXPECT_THROW(Optimizer({}, {.clip = -1}), std::invalid_argument);
  const Checkpoint checkpoint(test::fixtures() / "gpt2");
  const Transformer mapped(checkpoint);
  EXPECT_THROW(Optimizer(parameters(mapped, {.weights = true}), {}), std::invalid_argument);
}

// All weights of a trained model learn two lines of noise by heart.
TEST(Optimizer, BringsTheNextTokenLossOfOneBatchToZero) {
  const Checkpoint checkpoint(fs::path(DOFLA_SOURCE_DIR) / "tests/models/stories260K");
  Transformer model(checkpoint);
  model.make_trainable();
  Tensor ids({2, 24}, DType::kI64);
  for (int64_t i = 0; i < ids.count(); ++i) ids.data<int64_t>()[i] = 3 + i * 131 % 500;
  constexpr Trained kWeights = {.weights = true};
  Optimizer optimizer(parameters(model, kWeights), {});
  Gradients gradients = new_gradients(model, kWeights);
  double first = 0, last = 0;
  for (int i = 0; i < 150; ++i) {
    gradients.clear();
    last = next_token_gradient(model, ids, false, gradients);
    if (i == 0) first = last;
    ASSERT_TRUE(optimizer.step(parameters(gradients), 3e-3));
  }
  EXPECT_GT(first, 3);
  EXPECT_LT(last, 0.01);
}

}  // namespace
}  // namespace dofla
