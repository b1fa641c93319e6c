#include "dofla/distill/layer_target.h"

#include <limits>

#include <gtest/gtest.h>

#include "dofla/ops/hybrid_attention.h"
#include "tests/reference/compare.h"
#include "tests/reference/hybrid_attention.h"
#include "tests/reference/linear_attention.h"
#include "tests/reference/slopes.h"

namespace dofla {
namespace {

using reference::AttentionCase;

constexpr ExactKeys kCache = {.keys = 14, .sinks = 2, .recent = 3, .block = 4};

// Two query heads a key head, with a state each or one for both.
AttentionCase grouped(bool untied, int64_t tokens, int64_t batch) {
  reference::CaseOptions options = {.batch = batch, .key_heads = 2, .tokens = tokens, .width = 4};
  options.counts = untied ? std::vector<int64_t>{5, 9} : std::vector<int64_t>{5, 9, 7, 6};
  options.group = untied ? 2 : 0;
  return reference::random_case(options);
}

// Which keys are held: those of the cache, none, or all of them, which is softmax attention.
reference::HeldKeys held_by(const AttentionCase& c, const ExactKeys& exact) {
  if (!exact.empty()) return reference::held_keys(c, exact);
  return reference::HeldKeys(static_cast<size_t>(c.batch * c.key_heads * c.tokens * c.tokens), 0);
}
std::vector<double> softmax_attention_of(const AttentionCase& c) {
  return reference::hybrid_attention(
      c, reference::HeldKeys(static_cast<size_t>(c.batch * c.key_heads * c.tokens * c.tokens), 1));
}

// Σ |out − softmax attention's|² / (2 B T) of every query head.
std::vector<double> errors_of(const AttentionCase& c, const std::vector<double>& out) {
  const std::vector<double> wanted = softmax_attention_of(c);
  std::vector<double> sums(static_cast<size_t>(c.heads), 0);
  for (size_t i = 0; i < out.size(); ++i)
    sums[i / static_cast<size_t>(c.width) % sums.size()] +=
        (out[i] - wanted[i]) * (out[i] - wanted[i]) / static_cast<double>(2 * c.batch * c.tokens);
  return sums;
}

LayerTarget target_of(const AttentionCase& c, const ExactKeys& exact) {
  return {c.q_tensor(), c.k_tensor(), c.v_tensor(), exact, OutputLoss{}};
}

TEST(LayerTarget, TheOutputLossIsTheErrorOfTheOutput) {
  for (const ExactKeys& exact : {kCache, ExactKeys{}})
    for (const bool untied : {false, true}) {
      const AttentionCase c = grouped(untied, 40, 2);
      const std::vector<double> expected =
          errors_of(c, reference::hybrid_attention(c, held_by(c, exact)));
      const Tensor found = target_of(c, exact).loss(c.features()).per_head;
      for (size_t h = 0; h < expected.size(); ++h)
        EXPECT_NEAR(found.data<double>()[h], expected[h], 1e-5 * expected[h]) << "head " << h;
    }
}

TEST(LayerTarget, GradientsOfTheOutputLossAreSlopes) {
  for (const ExactKeys& exact : {kCache, ExactKeys{}})
    for (const bool untied : {false, true}) {
      AttentionCase c = grouped(untied, 23, 1);
      const reference::HeldKeys held = held_by(c, exact);
      const auto value = [&] {
        double sum = 0;
        for (const double error : errors_of(c, reference::hybrid_attention(c, held))) sum += error;
        return sum;
      };
      const FeatureGradients found = target_of(c, exact).loss(c.features()).grad;
      const auto compare = [&](const Tensor& actual, std::vector<double>& x, const char* what) {
        const std::vector<double> expected = reference::slopes(x, value);
        const double size = reference::largest(expected);
        reference::expect_near(
            actual, expected,
            20 * reference::weight_error(c) * size + 10 * reference::slope_error(size), what);
      };
      compare(found.z, c.z, "grad z");
      compare(found.log_alpha, c.log_alpha, "grad log alpha");
      if (!untied) continue;
      compare(found.u, c.u, "grad u");
      compare(found.norm_weight, c.norm_weight, "grad norm weight");
    }
}

// Features whose weights vanish leave the exact keys alone, and learn nothing.
TEST(LayerTarget, WithoutWeightsTheKeysAreAlone) {
  const AttentionCase c = grouped(true, 40, 2);
  Features none = c.features();
  for (int64_t m = 0; m < none.total(); ++m) none.log_alpha.data<float>()[m] = -1000;
  const FeatureLoss found = target_of(c, kCache).loss(none);
  const std::vector<double> expected =
      errors_of(c, reference::hybrid_attention(c, held_by(c, kCache), false));
  for (size_t h = 0; h < expected.size(); ++h)
    EXPECT_NEAR(found.per_head.data<double>()[h], expected[h], 1e-5 * expected[h]);
  EXPECT_EQ(reference::largest(reference::to_doubles(found.grad.z)), 0);
}

// The mean over windows: ranks that share a batch add up what they find.
TEST(LayerTarget, WindowsOfABatchCountAlike) {
  const AttentionCase c = grouped(true, 40, 2);
  const Tensor q = c.q_tensor(), k = c.k_tensor(), v = c.v_tensor();
  const FeatureLoss both = target_of(c, kCache).loss(c.features());
  std::vector<double> sum(static_cast<size_t>(both.grad.z.count()), 0);
  for (int64_t b = 0; b < 2; ++b) {
    const LayerTarget one(q.slice(b, b + 1), k.slice(b, b + 1), v.slice(b, b + 1), kCache,
                          OutputLoss{});
    const FeatureLoss found = one.loss(c.features());
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += found.grad.z.data<float>()[i] / 2;
  }
  reference::expect_near(both.grad.z, sum, 1e-5 * reference::largest(sum), "grad z");
}

// The step that trains features alone is the whole step without what nobody needs, bit by bit.
TEST(LayerTarget, FeaturesAloneHaveTheGradientsOfTheWholeStep) {
  const AttentionCase c = grouped(true, 40, 2);
  const Tensor q = c.q_tensor(), k = c.k_tensor(), v = c.v_tensor();
  const Features features = c.features();
  AttentionTape held, whole;
  hybrid_attention(q, k, v, {}, kCache, nullptr, 0, &held);
  const Tensor out = hybrid_attention(q, k, v, features, kCache, nullptr, 0, &whole);
  const Tensor before = held.out.clone();
  const AttentionTape tape = with_features(q, k, v, features, kCache, held);
  EXPECT_EQ(reference::to_doubles(tape.out), reference::to_doubles(out));
  EXPECT_EQ(reference::to_doubles(held.out), reference::to_doubles(before));
  const FeatureGradients expected =
      hybrid_attention_backward(q, k, v, features, kCache, out, whole).features;
  const FeatureGradients found = hybrid_feature_gradients(q, k, v, features, kCache, out, tape);
  EXPECT_EQ(reference::to_doubles(found.z), reference::to_doubles(expected.z));
  EXPECT_EQ(reference::to_doubles(found.u), reference::to_doubles(expected.u));
  EXPECT_THROW(with_features(q, k, v, features, kCache, whole), std::invalid_argument);
}

}  // namespace
}  // namespace dofla
