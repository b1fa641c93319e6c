#include "dofla/ops/adam.h"

#include <cmath>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include "dofla/checkpoint/safetensors.h"
#include "dofla/core/random.h"
#include "tests/reference/attention_case.h"
#include "tests/reference/compare.h"
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

// Moments in BF16, which has 8 binary digits: neighbours are at most 2⁻⁷ of a number apart.
class AdamInBf16 : public testing::Test {
 protected:
  static constexpr double kSpacing = 1.0 / 128;

  static Tensor filled(int64_t count, float value) {
    Tensor x({count});
    std::fill_n(x.data<float>(), count, value);
    return x;
  }
  static AdamMoments moments_of(const Tensor& parameter, uint64_t seed = 1) {
    AdamMoments moments = new_adam_moments(parameter, DType::kBF16);
    moments.seed = seed;
    return moments;
  }
  // The mean over the elements, and how many of them are above `value`.
  static double mean(const Tensor& moment) {
    const std::vector<double> values = to_doubles(moment.to(DType::kF32));
    return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  }
};

// One step from nothing: what is stored is one of the two neighbours, the upper one as often as it
// takes for the mean to be right. Of N elements it has the deviation of N throws of a coin.
TEST_F(AdamInBf16, IsRoundedToNeighboursAndRightInTheMean) {
  constexpr int64_t kCount = 40000;
  for (const float g : {0.3f, -0.3f, 1.2345f, 1e-12f, 3e4f}) {
    const Tensor gradient = filled(kCount, g);
    Tensor p = filled(kCount, 1), exact_p = filled(kCount, 1);
    AdamMoments moments = moments_of(p), exact = new_adam_moments(exact_p);
    adam_step(gradient, {}, moments, p);
    adam_step(gradient, {}, exact, exact_p);
    EXPECT_TRUE(test::same_bits(p, exact_p)) << g;  // a step is made before rounding
    for (const auto& [stored, value] :
         {std::pair(moments.mean, exact.mean), std::pair(moments.square, exact.square)}) {
      const double x = std::as_const(value).data<float>()[0];
      const double spacing = std::exp2(std::floor(std::log2(std::abs(x)))) * kSpacing;
      const double down = std::floor(x / spacing) * spacing, up = down + spacing;
      int64_t ups = 0;
      for (const double one : to_doubles(stored.to(DType::kF32))) {
        ASSERT_TRUE(one == down || one == up) << one << " for " << x;
        ups += one == up ? 1 : 0;
      }
      const double chance = (x - down) / spacing;
      EXPECT_NEAR(static_cast<double>(ups), chance * kCount,
                  5 * std::sqrt(kCount * chance * (1 - chance)) + 1e-6)
          << g;
    }
  }
}

// Mean and square, elements and steps are rounded by chances of their own.
TEST_F(AdamInBf16, ChancesAreIndependent) {
  constexpr int64_t kCount = 40000;
  const Tensor gradient = filled(kCount, 0.3f);
  const auto ups = [&](uint64_t seed, int steps) {
    Tensor p = filled(kCount, 1);
    AdamMoments moments = moments_of(p, seed);
    moments.steps = steps;
    adam_step(gradient, {}, moments, p);
    std::vector<std::pair<bool, bool>> both;
    const std::vector<double> m = to_doubles(moments.mean.to(DType::kF32)),
                              s = to_doubles(moments.square.to(DType::kF32));
    const double least_m = std::ranges::min(m), least_s = std::ranges::min(s);
    for (size_t i = 0; i < m.size(); ++i) both.emplace_back(m[i] > least_m, s[i] > least_s);
    return both;
  };
  const auto first = ups(1, 0), other_seed = ups(2, 0), other_step = ups(1, 1);
  const auto expect_independent = [&](const auto& a, const auto& b) {
    double count_a = 0, count_b = 0, count = 0;
    for (size_t i = 0; i + 1 < first.size(); ++i) {
      count_a += a(i) ? 1 : 0;
      count_b += b(i) ? 1 : 0;
      count += a(i) && b(i) ? 1 : 0;
    }
    const double expected = count_a * count_b / kCount;
    EXPECT_NEAR(count, expected, 5 * std::sqrt(kCount * 0.25)) << count_a << ' ' << count_b;
  };
  const auto mean = [&](size_t i) { return first[i].first; };
  expect_independent(mean, [&](size_t i) { return first[i].second; });
  expect_independent(mean, [&](size_t i) { return first[i + 1].first; });
  expect_independent(mean, [&](size_t i) { return other_seed[i].first; });
  expect_independent(mean, [&](size_t i) { return other_step[i].first; });
}

// A square that moves by a thousandth a step, less than BF16 can tell: rounding to nearest would
// leave it where it is. Errors of a step have at most half the spacing as their deviation, and are
// forgotten with beta2: their sum has at most spacing / 2 / √(1 − beta2²) of the value.
TEST_F(AdamInBf16, FollowsWhatMovesLessThanItsSpacing) {
  constexpr int64_t kCount = 4096;
  constexpr int kSteps = 2000;
  const AdamOptions options;
  const double deviation = kSpacing / 2 / std::sqrt(1 - options.beta2 * options.beta2);
  Tensor p = filled(kCount, 1);
  AdamMoments moments = moments_of(p);
  const Tensor gradient = filled(kCount, 1);
  for (int step = 0; step < kSteps; ++step) adam_step(gradient, options, moments, p);
  const double expected = 1 - std::pow(options.beta2, kSteps);
  EXPECT_NEAR(mean(moments.square), expected, 5 * deviation / std::sqrt(double{kCount}) * expected);
  for (const double one : to_doubles(moments.square.to(DType::kF32)))
    EXPECT_NEAR(one, expected, 6 * deviation * expected);
}

TEST_F(AdamInBf16, PartsHaveTheBitsOfTheWhole) {
  constexpr int64_t kCount = 10000, kCut = 4096;
  Random random(5);
  Tensor p({kCount}), gradient({kCount});
  for (int64_t i = 0; i < kCount; ++i) {
    p.data<float>()[i] = static_cast<float>(random.normal());
    gradient.data<float>()[i] = static_cast<float>(random.normal());
  }
  const Tensor start = p.clone();
  AdamMoments whole = moments_of(p);
  for (int step = 0; step < 3; ++step) adam_step(gradient, {}, whole, p);
  for (const auto& [begin, end] : {std::pair(int64_t{0}, kCut), std::pair(kCut, kCount)}) {
    Tensor part = start.slice(begin, end).clone();
    AdamMoments moments = moments_of(part);
    moments.first = begin;
    for (int step = 0; step < 3; ++step) adam_step(gradient.slice(begin, end), {}, moments, part);
    EXPECT_TRUE(test::same_bits(part, p.slice(begin, end)));
    EXPECT_TRUE(test::same_bits(moments.mean, whole.mean.slice(begin, end)));
    EXPECT_TRUE(test::same_bits(moments.square, whole.square.slice(begin, end)));
  }
}

TEST_F(AdamInBf16, SquaresBeyondFloatStayInfinite) {
  Tensor p = filled(100, 1);
  AdamMoments moments = moments_of(p);
  adam_step(filled(100, 1e30f), {}, moments, p);
  for (const double one : to_doubles(moments.square.to(DType::kF32))) EXPECT_TRUE(std::isinf(one));
  EXPECT_TRUE(std::isfinite(std::as_const(p).data<float>()[0]));
}

TEST_F(AdamInBf16, MomentsOfOneTypeOnly) {
  Tensor p = filled(4, 1);
  AdamMoments moments = moments_of(p);
  moments.square = Tensor::zeros({4});
  EXPECT_THROW(adam_step(filled(4, 1), {}, moments, p), std::invalid_argument);
  moments = new_adam_moments(p, DType::kF16);
  EXPECT_THROW(adam_step(filled(4, 1), {}, moments, p), std::invalid_argument);
}

}  // namespace
}  // namespace dofla
