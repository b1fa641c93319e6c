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

LinearAttentionGradients backward(const AttentionCase& c, const std::vector<double>& grad_out,
                                  int64_t chunk, const AttentionTape& tape = {}) {
  const Tensor gradient = reference::to_tensor(grad_out, {c.batch, c.tokens, c.heads, c.width});
  return linear_attention_backward(c.q_tensor(), c.k_tensor(), c.v_tensor(), c.features(), gradient,
                                   chunk, tape, {}, c.block);
}

AttentionTape tape_of(const AttentionCase& c) {
  AttentionTape tape;
  linear_attention(c.q_tensor(), c.k_tensor(), c.v_tensor(), c.features(), nullptr,
                   kLinearAttentionChunk, &tape, c.block);
  return tape;
}

// All gradients within the relative error of a weight, times each one's sensitivity to it.
void expect_gradients(const AttentionCase& c, const LinearAttentionGradients& actual,
                      const reference::LinearAttentionReference& expected, std::string_view how) {
  const double relative = reference::weight_error(c);
  const auto compare = [&](const Tensor& found, const reference::Sensitive& wanted,
                           std::string_view what) {
    std::vector<double> tolerance = reference::scaled(wanted.sensitivity, relative);
    for (double& x : tolerance) x += std::exp(-27);  // weights below this may vanish in a chunk
    expect_near(found, wanted.value, tolerance,
                fmt::format("{} tokens, {}: grad {}", c.tokens, how, what));
  };
  compare(actual.q, expected.q, "q");
  compare(actual.k, expected.k, "k");
  compare(actual.v, expected.v, "v");
  reference::expect_feature_gradients(
      actual.features, expected.features,
      [&](double sensitivity, double) { return relative * sensitivity + std::exp(-27); },
      fmt::format("{} tokens, {}", c.tokens, how));
}

void expect_gradients(const AttentionCase& c, const std::vector<double>& grad_out,
                      const reference::LinearAttentionReference& expected, int64_t chunk) {
  expect_gradients(c, backward(c, grad_out, chunk), expected, fmt::format("chunk {}", chunk));
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

TEST(LinearAttentionBackward, KeysComeABlockAtATime) {
  for (const int64_t group : {0, 2})
    for (const int64_t block : {2, 16, 64}) {
      const AttentionCase c = reference::random_case({.batch = 2,
                                                      .key_heads = 1,
                                                      .tokens = block == 64 ? 128 : 80,
                                                      .width = 8,
                                                      .counts = {3, 17},
                                                      .group = group,
                                                      .block = block});
      const std::vector<double> grad_out = random_gradient(c);
      const auto expected = reference::linear_attention_backward(c, grad_out);
      for (const int64_t chunk : {int64_t{1}, kLinearAttentionChunk, c.tokens})
        expect_gradients(c, grad_out, expected, chunk);
      expect_gradients(c, backward(c, grad_out, kLinearAttentionChunk, tape_of(c)), expected,
                       fmt::format("block {} from a tape", block));
    }
}

TEST(LinearAttentionBackward, KeepsBlocksBeforeAGiantKey) {
  AttentionCase c = reference::keys_that_grow();
  const std::vector<double> grad_out = random_gradient(c);
  for (const int64_t block : {2, 16, 32}) {
    c.block = block;
    const auto expected = reference::linear_attention_backward(c, grad_out);
    for (const int64_t chunk : {1, 64, 96}) expect_gradients(c, grad_out, expected, chunk);
  }
}

// The first features of a head, or the others, with the same weight in K̂ as among all.
AttentionCase some_features(const AttentionCase& c, int64_t first, int64_t last) {
  AttentionCase out = c;
  out.counts = {last - first};
  const auto cut = [&](std::vector<double>& x, int64_t width) {
    x = {x.begin() + first * width, x.begin() + last * width};
  };
  cut(out.z, c.width);
  cut(out.log_alpha, 1);
  if (c.untied()) cut(out.u, c.width);
  for (double& x : out.log_alpha)
    x += std::log(static_cast<double>(last - first) / static_cast<double>(c.counts[0]));
  return out;
}

// Two halves of the features are two parts of one attention: with its tape their gradients add up
// to its own, and what they have of their own features is what it has.
TEST(LinearAttentionBackward, APartOfALargerAttention) {
  for (const bool untied : {false, true})
    for (const int64_t block : {1, 16}) {
      AttentionCase c =
          reference::random_case({.tokens = 80, .width = 8, .counts = {20}, .block = block});
      if (untied) c = reference::untied_near(c);
      const std::vector<double> grad_out = random_gradient(c);
      const AttentionTape tape = tape_of(c);
      const LinearAttentionGradients first =
          backward(some_features(c, 0, 4), grad_out, kLinearAttentionChunk, tape);
      LinearAttentionGradients sum =
          backward(some_features(c, 4, 20), grad_out, kLinearAttentionChunk, tape);
      const auto add = [](const Tensor& x, Tensor& to) {
        for (int64_t i = 0; i < to.count(); ++i) to.data<float>()[i] += x.data<float>()[i];
      };
      const auto join = [](const Tensor& x, Tensor& with) {
        std::vector<double> all = to_doubles(x), others = to_doubles(with);
        all.insert(all.end(), others.begin(), others.end());
        Shape shape = with.shape();
        shape[0] += x.size(0);
        with = reference::to_tensor(all, shape);
      };
      add(first.q, sum.q);
      add(first.k, sum.k);
      add(first.v, sum.v);
      join(first.features.z, sum.features.z);
      join(first.features.log_alpha, sum.features.log_alpha);
      if (untied) {
        join(first.features.u, sum.features.u);
        add(first.features.norm_weight, sum.features.norm_weight);
      }
      expect_gradients(c, sum, reference::linear_attention_backward(c, grad_out),
                       fmt::format("block {}, two parts", block));
    }
}

// A tape changes no bit of the gradients.
TEST(LinearAttentionBackward, TakesOverWhatTheForwardFound) {
  const AttentionCase c = reference::random_case(
      {.batch = 2, .key_heads = 1, .tokens = 100, .width = 8, .counts = {7, 20}});
  const std::vector<double> grad_out = random_gradient(c);
  const LinearAttentionGradients with = backward(c, grad_out, 64, tape_of(c));
  const LinearAttentionGradients without = backward(c, grad_out, 64);
  EXPECT_EQ(to_doubles(with.q), to_doubles(without.q));
  EXPECT_EQ(to_doubles(with.k), to_doubles(without.k));
  EXPECT_EQ(to_doubles(with.v), to_doubles(without.v));
  EXPECT_EQ(to_doubles(with.features.z), to_doubles(without.features.z));
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
