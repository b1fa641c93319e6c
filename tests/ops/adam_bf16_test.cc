// Moments of Adam in 16 bits.
#include <algorithm>
#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include "dofla/core/random.h"
#include "tests/reference/attention_case.h"
#include "tests/support/adam_step_of_one.h"
#include "tests/support/random_values.h"

namespace dofla {
namespace {

using reference::to_doubles;

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
    test::step_of_one(gradient, {}, moments, p);
    test::step_of_one(gradient, {}, exact, exact_p);
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
    test::step_of_one(gradient, {}, moments, p);
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
  for (int step = 0; step < kSteps; ++step) test::step_of_one(gradient, options, moments, p);
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
  for (int step = 0; step < 3; ++step) test::step_of_one(gradient, {}, whole, p);
  for (const auto& [begin, end] : {std::pair(int64_t{0}, kCut), std::pair(kCut, kCount)}) {
    Tensor part = start.slice(begin, end).clone();
    AdamMoments moments = moments_of(part);
    moments.first = begin;
    for (int step = 0; step < 3; ++step)
      test::step_of_one(gradient.slice(begin, end), {}, moments, part);
    EXPECT_TRUE(test::same_bits(part, p.slice(begin, end)));
    EXPECT_TRUE(test::same_bits(moments.mean, whole.mean.slice(begin, end)));
    EXPECT_TRUE(test::same_bits(moments.square, whole.square.slice(begin, end)));
  }
}

TEST_F(AdamInBf16, SquaresBeyondFloatStayInfinite) {
  Tensor p = filled(100, 1);
  AdamMoments moments = moments_of(p);
  test::step_of_one(filled(100, 1e30f), {}, moments, p);
  for (const double one : to_doubles(moments.square.to(DType::kF32))) EXPECT_TRUE(std::isinf(one));
  EXPECT_TRUE(std::isfinite(std::as_const(p).data<float>()[0]));
}

TEST_F(AdamInBf16, MomentsOfOneTypeOnly) {
  Tensor p = filled(4, 1);
  AdamMoments moments = moments_of(p);
  moments.square = Tensor::zeros({4});
  EXPECT_THROW(test::step_of_one(filled(4, 1), {}, moments, p), std::invalid_argument);
  moments = new_adam_moments(p, DType::kF16);
  EXPECT_THROW(test::step_of_one(filled(4, 1), {}, moments, p), std::invalid_argument);
}

}  // namespace
}  // namespace dofla
