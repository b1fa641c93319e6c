#include "dofla/core/random.h"

#include <array>
#include <cmath>
#include <set>
#include <stdexcept>

#include <gtest/gtest.h>

namespace dofla {
namespace {

// The seeds are fixed, so these tests always see the same numbers; a correct generator lies
// outside five standard errors for one seed in two million.
constexpr double kErrors = 5;

TEST(Random, GivesTheNumbersOfTheDefinition) {
  // From SplitMix64 and xoshiro256++ written out in Python.
  const auto first = [](Random random) {
    return std::array{random.bits(), random.bits(), random.bits()};
  };
  EXPECT_EQ(first(Random(0)),
            (std::array<uint64_t, 3>{0x84f09bf307c1073a, 0xc82ffb597ceee51b, 0xadf96905c5df4417}));
  EXPECT_EQ(first(Random(1)),
            (std::array<uint64_t, 3>{0x4887886c7244e091, 0x4cfafb3b6cc3ea99, 0xfbce21167403a2c1}));
  EXPECT_EQ(first(Random(1, 1)),
            (std::array<uint64_t, 3>{0x8d6176e2f1f41696, 0x4488d4fc02c8f1e9, 0x0f2c0ec18a408301}));
  EXPECT_EQ(first(Random(UINT64_MAX, 5)),
            (std::array<uint64_t, 3>{0x84033b669d127386, 0x0214885fa3a7d659, 0xac4ea263eec7c427}));

  EXPECT_EQ(Random(7).uniform(), 0.09950354604408129);
  Random normal(7);  // log, cos and sin may differ by a few ulp between C libraries
  EXPECT_NEAR(normal.normal(), -0.29061356612058037, 4e-16);
  EXPECT_NEAR(normal.normal(), 0.3537822206626492, 4e-16);
}

TEST(Random, StreamsAndSeedsShareNothing) {
  constexpr int kStreams = 64;
  constexpr int kDraws = 1000;
  std::set<uint64_t> seen;
  for (uint64_t i = 0; i < kStreams; ++i) {
    Random stream(3, i);
    Random seed(4 + i, 0);
    for (int draw = 0; draw < kDraws; ++draw) {
      seen.insert(stream.bits());
      seen.insert(seed.bits());
    }
  }
  EXPECT_EQ(seen.size(), 2u * kStreams * kDraws);  // a chance repeat: 1 in 2·10⁹
}

TEST(Random, UniformLiesInItsRangeWithItsMoments) {
  constexpr int kDraws = 100'000;
  Random random(11);
  double sum = 0;
  double squares = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double x = random.uniform();
    ASSERT_GE(x, 0);
    ASSERT_LT(x, 1);
    sum += x;
    squares += x * x;
  }
  // The variances of x and x² are 1/12 and 1/5 − 1/9.
  EXPECT_NEAR(sum / kDraws, 1.0 / 2, kErrors * std::sqrt(1.0 / 12 / kDraws));
  EXPECT_NEAR(squares / kDraws, 1.0 / 3, kErrors * std::sqrt((1.0 / 5 - 1.0 / 9) / kDraws));
}

TEST(Random, NormalHasItsMoments) {
  constexpr int kDraws = 200'000;
  Random random(12);
  std::array<double, 5> moment = {};
  double neighbours = 0;  // E[x y] of consecutive draws, which share a radius
  double previous = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double x = random.normal();
    for (int power = 1; power <= 4; ++power)
      moment[static_cast<size_t>(power)] += std::pow(x, power) / kDraws;
    neighbours += x * previous / kDraws;
    previous = x;
  }
  // The variance of xⁿ is E[x²ⁿ] − E[xⁿ]², with E[x²] = 1, E[x⁴] = 3, E[x⁶] = 15, E[x⁸] = 105.
  const auto bound = [&](double variance) { return kErrors * std::sqrt(variance / kDraws); };
  EXPECT_NEAR(moment[1], 0, bound(1));
  EXPECT_NEAR(moment[2], 1, bound(3 - 1));
  EXPECT_NEAR(moment[3], 0, bound(15));
  EXPECT_NEAR(moment[4], 3, bound(105 - 9));
  EXPECT_NEAR(neighbours, 0, bound(1));
}

TEST(Random, BelowIsUniform) {
  constexpr int kDraws = 70'000;
  Random random(13);
  std::array<int, 7> counts = {};
  for (int i = 0; i < kDraws; ++i) ++counts.at(random.below(7));
  const double share = 1.0 / 7;
  for (const int count : counts)
    EXPECT_NEAR(count, kDraws * share, kErrors * std::sqrt(kDraws * share * (1 - share)));
}

TEST(Random, BelowHasNoBiasForLargeBounds) {
  // Plain remainders of 64 bits by 3·2⁶² would fall below 2⁶² half of the time.
  constexpr int kDraws = 30'000;
  Random random(14);
  int low = 0;
  for (int i = 0; i < kDraws; ++i) {
    const uint64_t x = random.below(uint64_t{3} << 62);
    ASSERT_LT(x, uint64_t{3} << 62);
    low += x < uint64_t{1} << 62;
  }
  EXPECT_NEAR(low, kDraws / 3.0, kErrors * std::sqrt(kDraws * (1.0 / 3) * (2.0 / 3)));
}

TEST(Random, BelowTakesItsExtremes) {
  Random random(15);
  EXPECT_EQ(random.below(1), 0u);
  EXPECT_LT(random.below(UINT64_MAX), UINT64_MAX);
  EXPECT_THROW(random.below(0), std::invalid_argument);
}

}  // namespace
}  // namespace dofla
