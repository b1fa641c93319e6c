#include "dofla/generate/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include "dofla/core/error.h"

namespace dofla {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<int64_t> counts(const std::vector<float>& logits, const SamplerOptions& options,
                            int64_t draws) {
  Sampler sampler(options);
  std::vector<int64_t> counts(logits.size());
  for (int64_t i = 0; i < draws; ++i) ++counts[static_cast<size_t>(sampler.sample(logits))];
  return counts;
}

// Each count lies within five standard deviations of its mean: a right sampler leaves this about
// once in two million counts, and the seed makes it once or never.
void expect_distribution(const std::vector<float>& logits, const SamplerOptions& options,
                         const std::vector<double>& probabilities) {
  constexpr int64_t kDraws = 200000;
  const std::vector<int64_t> found = counts(logits, options, kDraws);
  for (size_t i = 0; i < found.size(); ++i) {
    const double p = probabilities[i];
    EXPECT_NEAR(static_cast<double>(found[i]), p * kDraws, 5 * std::sqrt(kDraws * p * (1 - p)))
        << "token " << i;
  }
}

std::vector<double> softmax(const std::vector<float>& logits, double temperature,
                            const std::vector<size_t>& kept) {
  std::vector<double> p(logits.size());
  double sum = 0;
  for (const size_t i : kept) sum += p[i] = std::exp(logits[i] / temperature);
  for (double& x : p) x /= sum;
  return p;
}

const std::vector<float> kLogits = {0.5f, 2.0f, -1.0f, 1.0f, 1.5f};  // likeliest: 1, 4, 3, 0, 2

TEST(Sampler, ZeroTemperatureTakesTheFirstMaximum) {
  Sampler sampler({.temperature = 0, .top_k = 0, .top_p = 1, .seed = 1});
  EXPECT_EQ(sampler.sample(kLogits), 1);
  EXPECT_EQ(sampler.sample(std::vector<float>{1, 3, 3}), 1);
  EXPECT_EQ(sampler.sample(std::vector<float>{-kInfinity, -1}), 1);
}

TEST(Sampler, DrawsFromTheSoftmax) {
  for (const double temperature : {0.5, 1.0, 2.0})
    expect_distribution(kLogits, {.temperature = temperature, .top_k = 0, .top_p = 1, .seed = 3},
                        softmax(kLogits, temperature, {0, 1, 2, 3, 4}));
}

TEST(Sampler, TopKKeepsTheLikeliest) {
  expect_distribution(kLogits, {.temperature = 1, .top_k = 2, .top_p = 1, .seed = 4},
                      softmax(kLogits, 1, {1, 4}));
  expect_distribution(kLogits, {.temperature = 1, .top_k = 1, .top_p = 1, .seed = 4},
                      softmax(kLogits, 1, {1}));
  expect_distribution(kLogits, {.temperature = 1, .top_k = 99, .top_p = 1, .seed = 4},
                      softmax(kLogits, 1, {0, 1, 2, 3, 4}));
}

TEST(Sampler, TopPKeepsTheFewestThatReachP) {
  const std::vector<double> p = softmax(kLogits, 1, {0, 1, 2, 3, 4});
  const double two = p[1] + p[4];
  expect_distribution(kLogits, {.temperature = 1, .top_k = 0, .top_p = two - 1e-6, .seed = 5},
                      softmax(kLogits, 1, {1, 4}));
  expect_distribution(kLogits, {.temperature = 1, .top_k = 0, .top_p = two + 1e-6, .seed = 5},
                      softmax(kLogits, 1, {1, 4, 3}));
  expect_distribution(kLogits, {.temperature = 1, .top_k = 0, .top_p = 1e-9, .seed = 5},
                      softmax(kLogits, 1, {1}));
}

TEST(Sampler, TopPCountsWithinTheTopK) {
  const double share = softmax(kLogits, 1, {1, 4, 3})[1];
  expect_distribution(kLogits, {.temperature = 1, .top_k = 3, .top_p = share - 1e-6, .seed = 6},
                      softmax(kLogits, 1, {1}));
  expect_distribution(kLogits, {.temperature = 1, .top_k = 3, .top_p = share + 1e-6, .seed = 6},
                      softmax(kLogits, 1, {1, 4}));
}

TEST(Sampler, AmongEqualsTheLowerIdIsLikelier) {
  const std::vector<float> equal(8, 1.0f);
  expect_distribution(equal, {.temperature = 1, .top_k = 2, .top_p = 1, .seed = 7},
                      softmax(equal, 1, {0, 1}));
  expect_distribution(equal, {.temperature = 1, .top_k = 0, .top_p = 0.3, .seed = 7},
                      softmax(equal, 1, {0, 1, 2}));
}

// Of a large vocabulary most tokens are passed over unseen: the draws are those that the definition
// allows, the likeliest as often as it says.
TEST(Sampler, DrawsTheRightOnesOfManyTokens) {
  Random random(2);
  for (const double spread : {0.01, 1.0, 4.0}) {
    std::vector<float> logits(5'000);
    for (float& logit : logits) logit = static_cast<float>(spread * random.normal());
    std::vector<size_t> order(logits.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, [&](size_t a, size_t b) { return logits[a] > logits[b]; });
    for (const auto& [top_k, top_p] : {std::pair{0, 0.95}, {0, 0.3}, {50, 1.0}, {500, 0.5}}) {
      std::vector<size_t> kept(order.begin(), top_k > 0 ? order.begin() + top_k : order.end());
      const std::vector<double> p = softmax(logits, 1, kept);
      size_t count = 0;
      // Up to what float32 makes of the sum.
      for (double sum = 0; count < kept.size() && sum < top_p + 1e-5;) sum += p[kept[count++]];
      kept.resize(count);
      const std::vector<double> expected = softmax(logits, 1, kept);
      constexpr int64_t kDraws = 1000;
      const std::vector<int64_t> found =
          counts(logits, {.temperature = 1, .top_k = top_k, .top_p = top_p, .seed = 9}, kDraws);
      int64_t allowed = 0, likely = 0;
      double likely_share = 0;
      for (size_t i = 0; i < kept.size(); ++i) {
        allowed += found[kept[i]];
        if (i < kept.size() / 4 + 1) likely += found[kept[i]], likely_share += expected[kept[i]];
      }
      const std::string what = fmt::format("spread {}, k {}, p {}", spread, top_k, top_p);
      EXPECT_EQ(allowed, kDraws) << what;
      EXPECT_NEAR(static_cast<double>(likely), likely_share * kDraws,
                  5 * std::sqrt(kDraws * likely_share * (1 - likely_share)) + 1e-3)
          << what;
    }
  }
}

TEST(Sampler, TheSameSeedDrawsTheSameTokens) {
  const auto draw = [](uint64_t seed) {
    Sampler sampler({.temperature = 1, .top_k = 4, .top_p = 0.99, .seed = seed});
    std::vector<int64_t> ids;
    for (int i = 0; i < 64; ++i) ids.push_back(sampler.sample(kLogits));
    return ids;
  };
  EXPECT_EQ(draw(1), draw(1));
  EXPECT_NE(draw(1), draw(2));
}

TEST(Sampler, ExtremeTemperaturesStayFinite) {
  expect_distribution(kLogits, {.temperature = 1e-300, .top_k = 0, .top_p = 1, .seed = 8},
                      softmax(kLogits, 1, {1}));
  expect_distribution(kLogits, {.temperature = 1e300, .top_k = 0, .top_p = 1, .seed = 8},
                      std::vector<double>(5, 0.2));
  const std::vector<float> far = {3e38f, -3e38f, -kInfinity};
  expect_distribution(far, {.temperature = 1, .top_k = 0, .top_p = 0.95, .seed = 8}, {1, 0, 0});
}

TEST(Sampler, BrokenLogitsAreErrors) {
  for (const double temperature : {0.0, 1.0}) {
    Sampler sampler({.temperature = temperature, .top_k = 0, .top_p = 1, .seed = 0});
    EXPECT_THROW(sampler.sample(std::vector<float>{0, std::nanf("")}), Error);
    EXPECT_THROW(sampler.sample(std::vector<float>{0, kInfinity}), Error);
    EXPECT_THROW(sampler.sample(std::vector<float>{-kInfinity, -kInfinity}), Error);
    EXPECT_THROW(sampler.sample(std::vector<float>{}), Error);
  }
}

TEST(Sampler, RefusesOptionsOutOfRange) {
  const double nan = std::nan("");
  for (const SamplerOptions& bad : {
           SamplerOptions{.temperature = -1, .top_k = 0, .top_p = 1, .seed = 0},
           SamplerOptions{.temperature = nan, .top_k = 0, .top_p = 1, .seed = 0},
           SamplerOptions{.temperature = 1, .top_k = -1, .top_p = 1, .seed = 0},
           SamplerOptions{.temperature = 1, .top_k = 0, .top_p = 0, .seed = 0},
           SamplerOptions{.temperature = 1, .top_k = 0, .top_p = 1.1, .seed = 0},
           SamplerOptions{.temperature = 1, .top_k = 0, .top_p = nan, .seed = 0},
       })
    EXPECT_THROW(Sampler{bad}, std::invalid_argument);
}

}  // namespace
}  // namespace dofla
