#include "dofla/ops/adam.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "dofla/checkpoint/safetensors.h"
#include "dofla/core/random.h"
#include "tests/reference/attention_case.h"
#include "tests/reference/compare.h"
#include "tests/support/fixtures.h"
#include "tests/support/tolerance.h"

namespace dofla {
namespace {

using reference::expect_near;
using reference::to_doubles;

// Three steps on ½ |p − target|², as the fixture took them with PyTorch.
void expect_fixture_steps(const std::string& kind, const AdamOptions& options) {
  const Safetensors fixture(test::fixtures() / "optimizer.safetensors");
  const Tensor target = fixture.tensor("target");
  Tensor p = fixture.tensor("p0").clone();
  AdamMoments moments = new_adam_moments(p);
  for (int step = 1; step <= 3; ++step) {
    Tensor gradient(p.shape());
    double size = 1;
    for (int64_t i = 0; i < p.count(); ++i) {
      const float now = p.data<float>()[i];
      gradient.data<float>()[i] = now - std::as_const(target).data<float>()[i];
      size = std::max(size, static_cast<double>(std::abs(now)));
    }
    adam_step(gradient, options, moments, p);
    // Each step rounds the parameter a few times, and the step of size lr to a few ulp.
    expect_near(p, to_doubles(fixture.tensor(kind + ".p" + std::to_string(step))),
                step * test::kFloat32Epsilon * (2 * size + 8 * options.learning_rate), kind);
  }
  EXPECT_EQ(moments.steps, 3);
}

TEST(Adam, TakesTheStepsOfPyTorch) {
  expect_fixture_steps("adam", {.learning_rate = 0.02});
}

TEST(Adam, TakesTheStepsOfPyTorchWithDecay) {
  expect_fixture_steps("adamw", {.learning_rate = 0.02, .beta2 = 0.95, .weight_decay = 0.1});
}

TEST(Adam, MatchesTheFormulaAtEveryLength) {
  const AdamOptions options{.learning_rate = 0.1, .beta1 = 0.8, .beta2 = 0.9, .weight_decay = 0.5};
  for (const int64_t count : {0, 1, 63, 64, 65, 1000, 100000}) {
    Random random(static_cast<uint64_t>(count));
    Tensor p({count}), gradient({count});
    for (int64_t i = 0; i < count; ++i) {
      p.data<float>()[i] = static_cast<float>(random.normal());
      gradient.data<float>()[i] = static_cast<float>(random.normal() * std::exp(random.normal()));
    }
    std::vector<double> expected = to_doubles(p), mean(expected.size()), square(expected.size());
    const std::vector<double> g = to_doubles(gradient);
    AdamMoments moments = new_adam_moments(p);
    for (int step = 1; step <= 5; ++step) {
      adam_step(gradient, options, moments, p);
      for (size_t i = 0; i < expected.size(); ++i) {
        mean[i] = 0.8 * mean[i] + 0.2 * g[i];
        square[i] = 0.9 * square[i] + 0.1 * g[i] * g[i];
        const double root = std::sqrt(square[i] / (1 - std::pow(0.9, step)));
        expected[i] = expected[i] * (1 - 0.1 * 0.5) -
                      0.1 * mean[i] / (1 - std::pow(0.8, step)) / (root + 1e-8);
      }
    }
    expect_near(p, expected, 5 * test::kFloat32Epsilon * (2 * 6 + 8 * 0.1), std::to_string(count));
  }
}

TEST(Adam, ClipsAllGradientsTogether) {
  std::vector<Tensor> gradients = {Tensor({3}), Tensor({5000})};
  double squares = 0;
  for (Tensor& gradient : gradients)
    for (int64_t i = 0; i < gradient.count(); ++i) {
      gradient.data<float>()[i] = static_cast<float>(i % 7) - 3;
      squares += std::pow(i % 7 - 3, 2);
    }
  const std::vector<double> before = to_doubles(gradients[1]);
  EXPECT_EQ(clip_by_global_norm(1e9, gradients), std::sqrt(squares));
  EXPECT_EQ(to_doubles(gradients[1]), before);
  EXPECT_EQ(clip_by_global_norm(2.0, gradients), std::sqrt(squares));
  EXPECT_NEAR(global_norm(gradients), 2.0, 2.0 * test::kFloat32Epsilon);
  EXPECT_NEAR(gradients[1].data<float>()[0], before[0] * 2 / std::sqrt(squares),
              3 * test::kFloat32Epsilon);
}

TEST(Adam, LeavesGradientsThatAreNotFiniteAlone) {
  std::vector<Tensor> gradients = {Tensor::zeros({3})};
  gradients[0].data<float>()[0] = 5;
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    gradients[0].data<float>()[1] = bad;
    EXPECT_FALSE(std::isfinite(clip_by_global_norm(1.0, gradients)));
    EXPECT_EQ(gradients[0].data<float>()[0], 5);
  }
  gradients[0].data<float>()[1] = std::numeric_limits<float>::max();  // finite all the same
  EXPECT_TRUE(std::isfinite(clip_by_global_norm(1.0, gradients)));
  EXPECT_NEAR(gradients[0].data<float>()[1], 1, test::kFloat32Epsilon);
}

TEST(Adam, RefusesWhatDoesNotFit) {
  Tensor p = Tensor::zeros({4});
  AdamMoments moments = new_adam_moments(p);
  EXPECT_THROW(adam_step(Tensor::zeros({5}), {}, moments, p), std::invalid_argument);
  EXPECT_THROW(adam_step(Tensor::zeros({4}, DType::kF64), {}, moments, p), std::invalid_argument);
  EXPECT_THROW(adam_step(Tensor::zeros({4}), {.beta1 = 1}, moments, p), std::invalid_argument);
  EXPECT_EQ(moments.steps, 0);
}

}  // namespace
}  // namespace dofla
