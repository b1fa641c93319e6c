#include "dofla/ops/positive_features.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "dofla/checkpoint/safetensors.h"
#include "tests/reference/attention_case.h"
#include "tests/reference/compare.h"
#include "tests/reference/linear_attention.h"
#include "tests/support/fixtures.h"

namespace dofla {
namespace {

using reference::AttentionCase;

// K̂(q_i, k_j) of head h of the first sequence, from the op's log features.
double kernel_hat(const Tensor& log_q, const Tensor& log_k, const Features& features, int64_t h,
                  int64_t i, int64_t j) {
  const std::vector<int64_t> offsets = features.offsets();
  double sum = 0;
  for (int64_t m = offsets[static_cast<size_t>(h)]; m < offsets[static_cast<size_t>(h + 1)]; ++m)
    sum += std::exp(static_cast<double>(log_q.data<float>()[i * features.total() + m]) +
                    log_k.data<float>()[j * features.total() + m]);
  return sum;
}

// Features as they are before training: z standard normal, α = 1.
AttentionCase untrained(const std::vector<int64_t>& counts, uint64_t seed) {
  AttentionCase c = reference::random_case({.key_heads = static_cast<int64_t>(counts.size()),
                                            .tokens = 4,
                                            .width = 16,
                                            .counts = counts,
                                            .query_scale = 0.5,
                                            .key_scale = 0.5,
                                            .seed = seed});
  for (double& x : c.log_alpha) x = 0;
  return c;
}

TEST(PositiveFeatures, MatchTheReferenceForEveryHead) {
  for (const int64_t tokens : {1, 63, 64, 65, 1000}) {
    const AttentionCase c = reference::random_case(
        {.batch = 2, .key_heads = 1, .tokens = tokens, .width = 20, .counts = {5, 1, 33}});
    const Tensor logs = log_positive_features(c.k_tensor(), c.features(), FeatureSide::kKeys);
    ASSERT_EQ(logs.shape(), (Shape{2, tokens, 39}));
    std::vector<double> expected(static_cast<size_t>(logs.count()));
    const std::vector<int64_t> offsets = c.features().offsets();
    for (int64_t b = 0; b < 2; ++b) {
      for (int64_t h = 0; h < 3; ++h) {
        const std::vector<double> head = reference::log_features(c, FeatureSide::kKeys, b, h);
        const int64_t count = c.counts[static_cast<size_t>(h)];
        for (int64_t t = 0; t < tokens; ++t)
          for (int64_t m = 0; m < count; ++m)
            expected[static_cast<size_t>((b * tokens + t) * 39 + offsets[static_cast<size_t>(h)] +
                                         m)] = head[static_cast<size_t>(t * count + m)];
      }
    }
    reference::expect_near(logs, expected, c.log_feature_error(), fmt::format("{} tokens", tokens));
  }
}

TEST(PositiveFeatures, GiveTheKernelOfTheFixture) {
  const fs::path file = test::fixtures() / "features.safetensors";
  const AttentionCase c = reference::fixture_case(file);
  const Features features = c.features();
  const Tensor log_q = log_positive_features(c.q_tensor(), features, FeatureSide::kQueries);
  const Tensor log_k = log_positive_features(c.k_tensor(), features, FeatureSide::kKeys);
  const std::vector<double> expected =
      reference::to_doubles(Safetensors(file).tensor("kernel_hat"));
  const double relative = 2 * c.log_feature_error();
  for (int64_t h = 0; h < c.heads; ++h)
    for (int64_t i = 0; i < c.tokens; ++i)
      for (int64_t j = 0; j < c.tokens; ++j) {
        const double want = expected[static_cast<size_t>((h * c.tokens + i) * c.tokens + j)];
        EXPECT_NEAR(kernel_hat(log_q, log_k, features, h, i, j), want, relative * want);
      }
}

TEST(PositiveFeatures, AreUnbiasedBeforeTraining) {
  const int64_t count = 20000;
  const AttentionCase c = untrained({count}, 5);
  const Features features = c.features();
  const Tensor log_q = log_positive_features(c.q_tensor(), features, FeatureSide::kQueries);
  const Tensor log_k = log_positive_features(c.k_tensor(), features, FeatureSide::kKeys);
  const std::vector<double> exact = reference::log_kernel(c, 0, 0);
  for (int64_t i = 0; i < c.tokens; ++i) {
    for (int64_t j = 0; j < c.tokens; ++j) {
      double sum = 0, squares = 0;  // of M φ̃_m φ̃_m / K: independent, of mean 1
      for (int64_t m = 0; m < count; ++m) {
        const double x = static_cast<double>(count) *
                         std::exp(static_cast<double>(log_q.data<float>()[i * count + m]) +
                                  log_k.data<float>()[j * count + m] -
                                  exact[static_cast<size_t>(i * c.tokens + j)]);
        sum += x;
        squares += x * x;
      }
      const auto n = static_cast<double>(count);
      const double standard_error = std::sqrt((squares / n - std::pow(sum / n, 2)) / n);
      EXPECT_NEAR(sum / n, 1.0, 4 * standard_error) << i << ", " << j;  // 16 pairs: p < 0.001
    }
  }
}

TEST(PositiveFeatures, MoreOfThemEstimateBetter) {
  double previous = std::numeric_limits<double>::infinity();
  for (const int64_t count : {4, 64, 1024}) {
    const AttentionCase c = untrained(std::vector<int64_t>(50, count), 6);
    const Features features = c.features();
    const Tensor log_q = log_positive_features(c.q_tensor(), features, FeatureSide::kQueries);
    const Tensor log_k = log_positive_features(c.k_tensor(), features, FeatureSide::kKeys);
    double error = 0;
    for (int64_t h = 0; h < c.heads; ++h) {
      const std::vector<double> exact = reference::log_kernel(c, 0, h);
      for (int64_t i = 0; i < c.tokens; ++i)
        for (int64_t j = 0; j < c.tokens; ++j)
          error += std::pow(kernel_hat(log_q, log_k, features, h, i, j) /
                                    std::exp(exact[static_cast<size_t>(i * c.tokens + j)]) -
                                1,
                            2);
    }
    EXPECT_LT(error, previous / 4) << count;  // a sixteenth is expected
    previous = error;
  }
}

TEST(PositiveFeatures, RefuseWhatDoesNotFit) {
  const AttentionCase c = reference::random_case({.tokens = 4, .counts = {3, 5}});
  Features features = c.features();
  EXPECT_THROW(log_positive_features(Tensor::zeros({1, 3, 4, 16}), features, FeatureSide::kKeys),
               std::invalid_argument);
  EXPECT_THROW(log_positive_features(Tensor::zeros({1, 2, 4, 8}), features, FeatureSide::kKeys),
               std::invalid_argument);
  features.counts = {4, 5};
  EXPECT_THROW(log_positive_features(c.q_tensor(), features, FeatureSide::kQueries),
               std::invalid_argument);
}

}  // namespace
}  // namespace dofla
