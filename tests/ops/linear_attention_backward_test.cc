#include <cmath>

#include <gtest/gtest.h>

#include "dofla/checkpoint/safetensors.h"
#include "dofla/core/random.h"
#include "dofla/ops/linear_attention.h"
#include "tests/reference/attention_case.h"
#include "tests/reference/compare.h"
#include "tests/reference/linear_attention.h"
#include "tests/support/fixtures.h"

namespace dofla {
namespace {

using reference::AttentionCase;
using reference::expect_near;
using reference::to_doubles;

std::vector<double> random_gradient(const AttentionCase& c) {
  Random random(77);
  std::vector<double> out(static_cast<size_t>(c.batch * c.tokens * c.heads * c.width));
  for (double& x : out) x = static_cast<float>(random.normal());
  return out;
}

// All gradients within the relative error of a weight, times each one's sensitivity to it.
void expect_gradients(const AttentionCase& c, const std::vector<double>& grad_out,
                      const reference::LinearAttentionReference& expected, int64_t chunk) {
  const Tensor gradient = reference::to_tensor(grad_out, {c.batch, c.tokens, c.heads, c.width});
  const LinearAttentionGradients actual = linear_attention_backward(
      c.q_tensor(), c.k_tensor(), c.v_tensor(), c.features(), gradient, chunk);
  const double relative = reference::weight_error(c);
  const auto compare = [&](const Tensor& found, const reference::Sensitive& wanted,
                           std::string_view what) {
    std::vector<double> tolerance = reference::scaled(wanted.sensitivity, relative);
    for (double& x : tolerance) x += std::exp(-27);  // weights below this may vanish in a chunk
    expect_near(found, wanted.value, tolerance,
                fmt::format("{} tokens, chunk {}: grad {}", c.tokens, chunk, what));
  };
  compare(actual.q, expected.q, "q");
  compare(actual.k, expected.k, "k");
  compare(actual.v, expected.v, "v");
  reference::expect_feature_gradients(
      actual.features, expected.features,
      [&](double sensitivity, double) { return relative * sensitivity + std::exp(-27); },
      fmt::format("{} tokens, chunk {}", c.tokens, chunk));
}

TEST(LinearAttentionBackward, MatchesTheFixture) {
  const fs::path file = test::fixtures() / "features.safetensors";
  const AttentionCase c = reference::fixture_case(file);
  const Safetensors fixture(file);
  const auto grad_out =
      reference::heads_inside(to_doubles(fixture.tensor("linear_attention.grad_out")), c);
  reference::LinearAttentionReference expected = reference::linear_attention_backward(c, grad_out);
  expected.q.value = to_doubles(fixture.tensor("linear_attention.grad_q"));
  expected.k.value = to_doubles(fixture.tensor("linear_attention.grad_k"));
  expected.v.value = to_doubles(fixture.tensor("linear_attention.grad_v"));
  expected.features.z.value = to_doubles(fixture.tensor("linear_attention.grad_z"));
  expected.features.log_alpha.value = to_doubles(fixture.tensor("linear_attention.grad_log_alpha"));
  for (const int64_t chunk : {1, 7, 64, 1000}) expect_gradients(c, grad_out, expected, chunk);
}

// The reference's gradients against the slope of Σ grad_out · out along a random direction.
void expect_slopes(const AttentionCase& c) {
  const std::vector<double> grad_out = random_gradient(c);
  const reference::LinearAttentionReference at = reference::linear_attention_backward(c, grad_out);
  AttentionCase up = c, down = c;
  Random random(3);
  const double step = 1e-6;
  double slope = 0, size = 0;
  const auto nudge = [&](std::vector<double> AttentionCase::*part,
                         const reference::Sensitive& gradient) {
    for (size_t i = 0; i < gradient.value.size(); ++i) {
      const double direction = random.normal();
      (up.*part)[i] += step * direction;
      (down.*part)[i] -= step * direction;
      slope += direction * gradient.value[i];
      size += std::abs(direction * gradient.value[i]);
    }
  };
  nudge(&AttentionCase::q, at.q);
  nudge(&AttentionCase::k, at.k);
  nudge(&AttentionCase::v, at.v);
  nudge(&AttentionCase::z, at.features.z);
  nudge(&AttentionCase::log_alpha, at.features.log_alpha);
  nudge(&AttentionCase::u, at.features.u);
  nudge(&AttentionCase::norm_weight, at.features.norm_weight);
  const std::vector<double> above = reference::linear_attention(up);
  const std::vector<double> below = reference::linear_attention(down);
  double difference = 0;
  for (size_t i = 0; i < above.size(); ++i)
    difference += grad_out[i] * (above[i] - below[i]) / (2 * step);
  EXPECT_NEAR(slope, difference, 1e-7 * size);
}

TEST(LinearAttentionBackward, TheReferenceHasTheSlopesItClaims) {
  for (const int64_t group : {0, 3})
    expect_slopes(reference::random_case({.batch = 2,
                                          .key_heads = 1,
                                          .tokens = 9,
                                          .width = 8,
                                          .counts = {3, 10},
                                          .group = group,
                                          .key_scale = 3}));
}

TEST(LinearAttentionBackward, MatchesTheReferenceAtEveryLength) {
  for (const int64_t length : {1, 63, 64, 65, 1000}) {
    const AttentionCase c = reference::random_case(
        {.batch = 1, .key_heads = 1, .tokens = length, .width = 12, .counts = {3, 17}});
    const std::vector<double> grad_out = random_gradient(c);
    const auto expected = reference::linear_attention_backward(c, grad_out);
    for (const int64_t chunk : {kLinearAttentionChunk, length})
      expect_gradients(c, grad_out, expected, chunk);
  }
}

TEST(LinearAttentionBackward, SharesKeyHeadsAndTakesRaggedFeatures) {
  const AttentionCase c = reference::random_case(
      {.batch = 2, .key_heads = 2, .tokens = 40, .width = 8, .counts = {1, 16, 40, 3}});
  const std::vector<double> grad_out = random_gradient(c);
  expect_gradients(c, grad_out, reference::linear_attention_backward(c, grad_out), 16);
}

TEST(LinearAttentionBackward, SurvivesExtremeKeys) {
  const AttentionCase c =
      reference::fixture_case(test::fixtures() / "features_extreme.safetensors");
  const std::vector<double> grad_out = random_gradient(c);
  const auto expected = reference::linear_attention_backward(c, grad_out);
  for (const int64_t chunk : {1, 5, 64, 1000}) expect_gradients(c, grad_out, expected, chunk);
}

TEST(LinearAttentionBackward, KeepsRowsBeforeAGiantKey) {
  const AttentionCase c = reference::keys_that_grow();
  const std::vector<double> grad_out = random_gradient(c);
  const auto expected = reference::linear_attention_backward(c, grad_out);
  for (const int64_t chunk : {1, 5, 64, 96}) expect_gradients(c, grad_out, expected, chunk);
}

}  // namespace
}  // namespace dofla
