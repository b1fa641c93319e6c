#include "dofla/ops/cpu/feature_loss_factors.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "tests/reference/attention_case.h"
#include "tests/reference/linear_attention.h"

namespace dofla::cpu {
namespace {

using reference::AttentionCase;

struct Sides {
  Side query, key;
};

Sides sides_of(const AttentionCase& c) {
  const Features features = c.features();
  const Tensor q = c.q_tensor(), k = c.k_tensor();
  Sides sides;
  fill_sides(head_features(features)[0], q.data<float>(), k.data<float>(), c.tokens, sides.query,
             sides.key);
  return sides;
}

// docs/kernels.md, "Balancing": what the balance takes away is the same for all features
// afterwards.
TEST(FeatureLossFactors, LogFeaturesAreAlikeOnAverage) {
  const AttentionCase c = reference::random_case(
      {.tokens = 50, .width = 16, .counts = {40}, .query_scale = 3, .key_scale = 2});
  const auto [query, key] = sides_of(c);
  std::vector<double> left(40);
  for (size_t t = 0; t < 50; ++t)
    for (size_t m = 0; m < 40; ++m)
      left[m] += (0.75 * query.logs[t * 40 + m] - 0.25 * key.logs[t * 40 + m]) / 50;
  for (size_t m = 1; m < 40; ++m)
    EXPECT_NEAR(left[m], left[0], 2 * c.log_feature_error()) << "feature " << m;
}

// Two log features make a term, and balancing rounds each of them once more.
TEST(FeatureLossFactors, TheirProductsAreThoseOfTheFeatures) {
  for (const double scale : {0.5, 3.0}) {
    const AttentionCase c = reference::random_case(
        {.tokens = 20, .width = 16, .counts = {30}, .query_scale = scale, .key_scale = scale});
    const auto [query, key] = sides_of(c);
    const std::vector<double> expected = reference::log_kernel_hat(c, 0, 0);
    for (size_t i = 0; i < 20; ++i)
      for (size_t j = 0; j < 20; ++j) {
        double sum = 0;
        for (size_t m = 0; m < 30; ++m)
          sum += std::exp(double{query.logs[i * 30 + m]} + double{key.logs[j * 30 + m]});
        EXPECT_NEAR(std::log(sum) + double{query.peak[i]} + double{key.peak[j]},
                    expected[i * 20 + j], 4 * c.log_feature_error());
      }
  }
}

}  // namespace
}  // namespace dofla::cpu
