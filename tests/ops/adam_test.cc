#include "dofla/ops/adam.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "dofla/checkpoint/safetensors.h"
#include "dofla/core/random.h"
#include "tests/reference/attention_case.h"
#include "tests/reference/compare.h"
#include "tests/support/adam_step_of_one.h"
#include "tests/support/fixtures.h"
#include "tests/support/random_values.h"
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
    test::step_of_one(gradient, options, moments, p);
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
      test::step_of_one(gradient, options, moments, p);
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

// Two parameters of more and less than a block, all of one value, and small integers as gradients.
class AdamClipping : public testing::Test {
 protected:
  AdamClipping() {
    for (const int64_t count : {3, 5000}) {
      AdamParameter& one = all.emplace_back();
      one.value = Tensor({count});
      one.gradient = Tensor({count});
      one.moments = new_adam_moments(one.value);
      for (int64_t i = 0; i < count; ++i) {
        one.value.data<float>()[i] = 1;
        one.gradient.data<float>()[i] = static_cast<float>(i % 7) - 3;
        squares += std::pow(i % 7 - 3, 2);
      }
    }
  }
  // The same with memory of their own, and gradients times a factor.
  std::vector<AdamParameter> copies(float factor) const {
    std::vector<AdamParameter> others = all;
    for (AdamParameter& one : others) {
      for (Tensor* x : {&one.value, &one.gradient, &one.moments.mean, &one.moments.square})
        *x = x->clone();
      for (int64_t i = 0; i < one.gradient.count(); ++i) one.gradient.data<float>()[i] *= factor;
    }
    return others;
  }
  Tensor norm() const {
    std::vector<Tensor> gradients;
    for (const AdamParameter& one : all) gradients.push_back(one.gradient);
    return gradient_norm(gradients);
  }
  static void expect_same(const std::vector<AdamParameter>& found,
                          const std::vector<AdamParameter>& expected) {
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_TRUE(test::same_bits(found[i].value, expected[i].value));
      EXPECT_TRUE(test::same_bits(found[i].moments.mean, expected[i].moments.mean));
      EXPECT_TRUE(test::same_bits(found[i].moments.square, expected[i].moments.square));
      EXPECT_EQ(found[i].moments.steps, expected[i].moments.steps);
    }
  }

  std::vector<AdamParameter> all;
  double squares = 0;
};

TEST_F(AdamClipping, TheNormIsThatOfAllGradients) {
  EXPECT_EQ(norm().data<double>()[0], std::sqrt(squares));
  const std::vector<Tensor> gradients = {all[0].gradient, all[1].gradient};
  const Tensor blocks = block_squares(gradients);
  ASSERT_EQ(blocks.shape(), (Shape{3}));  // 4,096 elements and what is left of each
  EXPECT_EQ(blocks.data<double>()[0], 9 + 4 + 1);
  double sum = 0;
  for (int64_t i = 0; i < 3; ++i) sum += blocks.data<double>()[i];
  EXPECT_EQ(sum, squares);
  EXPECT_EQ(gradient_norm({}).data<double>()[0], 0);
}

// Gradients count as multiplied, and are left alone.
TEST_F(AdamClipping, IsAStepOfScaledGradients) {
  const double found = std::sqrt(squares);
  for (const double most : {1e9, found, 2.0}) {
    std::vector<AdamParameter> clipped = copies(1);
    std::vector<AdamParameter> scaled = copies(most < found ? static_cast<float>(most / found) : 1);
    for (int step = 0; step < 2; ++step) {
      EXPECT_TRUE(adam_step(clipped, norm(), most));
      EXPECT_TRUE(adam_step(scaled));
    }
    expect_same(clipped, scaled);
    for (size_t i = 0; i < all.size(); ++i)
      EXPECT_TRUE(test::same_bits(clipped[i].gradient, all[i].gradient));
  }
}

TEST_F(AdamClipping, ANormThatIsNotFiniteChangesNothing) {
  float& one = all[1].gradient.data<float>()[4999];
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    one = bad;
    std::vector<AdamParameter> stepped = copies(1);
    EXPECT_FALSE(adam_step(stepped, norm(), 1));
    expect_same(stepped, all);
  }
  one = std::numeric_limits<float>::max();  // finite all the same
  EXPECT_TRUE(adam_step(all, norm(), 1));
  EXPECT_NEAR(all[1].moments.mean.data<float>()[4999], 0.1, 0.1 * 8 * test::kFloat32Epsilon);
}

TEST_F(AdamClipping, CopiesAreTheValuesRounded) {
  for (AdamParameter& one : all) one.copy = Tensor(one.value.shape(), DType::kBF16);
  adam_step(all);
  for (const AdamParameter& one : all)
    EXPECT_TRUE(test::same_bits(one.copy, one.value.to(DType::kBF16)));
}

TEST_F(AdamClipping, RefusesWhatDoesNotFit) {
  const auto refused = [&](const auto& damage, double most = 1) {
    std::vector<AdamParameter> damaged = all;
    Tensor of = norm();
    damage(damaged[1], of);
    EXPECT_THROW(adam_step(damaged, of, most), std::invalid_argument);
    EXPECT_EQ(damaged[0].moments.steps, 0);
  };
  refused([](AdamParameter& one, Tensor&) { one.gradient = Tensor::zeros({5}); });
  refused([](AdamParameter& one, Tensor&) { one.gradient = Tensor::zeros({5000}, DType::kF64); });
  refused([](AdamParameter& one, Tensor&) { one.value = Tensor::zeros({5000}, DType::kBF16); });
  refused([](AdamParameter& one, Tensor&) { one.options.beta1 = 1; });
  refused([](AdamParameter& one, Tensor&) { one.copy = Tensor::zeros({5000}); });
  refused([](AdamParameter& one, Tensor&) {
    one.moments = new_adam_moments(one.value, DType::kBF16);  // the other has them in float32
  });
  refused([](AdamParameter&, Tensor& of) { of = Tensor::zeros({2}, DType::kF64); });
  refused([](AdamParameter&, Tensor&) {}, 0);
  const Tensor gradient = Tensor::zeros({4}, DType::kF64);
  EXPECT_THROW(gradient_norm({&gradient, 1}), std::invalid_argument);
}

}  // namespace
}  // namespace dofla
