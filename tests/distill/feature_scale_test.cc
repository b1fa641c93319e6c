#include "dofla/distill/feature_scale.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "dofla/distill/pair_init.h"
#include "dofla/plan/allocate.h"
#include "tests/reference/attention_case.h"
#include "tests/reference/linear_attention.h"

namespace dofla {
namespace {

constexpr int64_t kTokens = 24, kBlock = 4;

reference::AttentionCase two_heads() {
  return reference::random_case(
      {.key_heads = 1, .tokens = kTokens, .width = 8, .counts = {6, 6}, .seed = 4});
}

PairsToLearn pairs_of(const reference::AttentionCase& c, float rest) {
  Tensor beside({1, c.heads, kTokens});
  std::fill_n(beside.data<float>(), beside.count(), rest);
  return {c.q_tensor(), c.k_tensor(), beside, kBlock};
}

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

// Of one query head, from the kernels of all pairs by their definition.
struct Attention {
  double teacher = 0, student = 0;  // to the keys that are left to features, summed over queries
};
Attention attention(const reference::AttentionCase& c, int64_t head, double rest, double shift) {
  const std::vector<double> exact = reference::log_kernel(c, 0, head);
  const std::vector<double> estimate = reference::log_kernel_hat(c, 0, head);
  Attention sums;
  for (int64_t i = 0; i < kTokens; ++i) {
    const int64_t seen = (i / kBlock + 1) * kBlock;
    sums.teacher += sigmoid(reference::log_sum_exp(exact.data() + i * kTokens, seen) - rest);
    sums.student +=
        sigmoid(shift + reference::log_sum_exp(estimate.data() + i * kTokens, seen) - rest);
  }
  return sums;
}

TEST(FeatureScale, FeaturesGetTheAttentionThatIsLeftToThem) {
  const reference::AttentionCase c = two_heads();
  const Features features = c.features();
  for (const float rest : {-3.0f, 2.0f, 6.0f}) {
    const SampledRows rows = sample_rows(pairs_of(c, rest), kTokens);
    for (int64_t head = 0; head < 2; ++head) {
      const double shift = missing_log_scale(rows, head, 1, features.z.data<float>() + head * 6 * 8,
                                             features.log_alpha.data<float>() + head * 6, 6);
      const Attention sums = attention(c, head, rest, shift);
      // Nearly all attention, or hardly any, says little of the scale.
      const double slope = std::min(sums.teacher, kTokens - sums.teacher);
      EXPECT_NEAR(sums.student, sums.teacher, 1e-3 * slope) << rest;
      EXPECT_GT(attention(c, head, rest, shift + 0.1).student - sums.teacher, 1e-2 * slope);
    }
  }
}

TEST(FeatureScale, FewRowsAreEvenlySpread) {
  const reference::AttentionCase c = two_heads();
  const SampledRows rows = sample_rows(pairs_of(c, 0), 3);
  EXPECT_EQ(rows.seen, (std::vector<int64_t>{8, 16, 24}));  // of the queries 4, 12 and 20
  EXPECT_EQ(rows.q.data<float>()[0], static_cast<float>(c.q[4 * 8]));
  EXPECT_EQ(rows.k.shape(), (Shape{1, kTokens, 8}));
}

// Features that are drawn at pairs have it; without exact keys nothing asks for it.
TEST(FeatureScale, FeaturesFromPairsHaveIt) {
  const reference::AttentionCase c = two_heads();
  DimensionPlan plan = fixed_plan({"gpt2", 1, 2, 8}, 6, 1);
  for (const float rest : {0.0f, 50.0f}) {  // 50: hardly a pair is left to features
    PairSampler sampler(plan, 1, 3);
    sampler.offer(0, pairs_of(c, rest));
    const FeatureSet set = sampler.features(FeatureMap::kPrf);
    const SampledRows rows = sample_rows(pairs_of(c, rest), kTokens);
    EXPECT_NEAR(missing_log_scale(rows, 0, 2, set.layers[0].z.data<float>(),
                                  set.layers[0].log_alpha.data<float>(), 6),
                0, 1e-4);
  }
}

}  // namespace
}  // namespace dofla
