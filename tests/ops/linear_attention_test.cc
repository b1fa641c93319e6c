#include "dofla/ops/linear_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "dofla/checkpoint/safetensors.h"
#include "dofla/core/random.h"
#include "tests/reference/attention_case.h"
#include "tests/reference/compare.h"
#include "tests/reference/linear_attention.h"
#include "tests/support/fixtures.h"

namespace dofla {
namespace {

using reference::AttentionCase;
using reference::expect_near;
using reference::to_doubles;

constexpr double kEps = std::numeric_limits<float>::epsilon();

Tensor attend(const AttentionCase& c, int64_t chunk, LinearAttentionState* state = nullptr) {
  return linear_attention(c.q_tensor(), c.k_tensor(), c.v_tensor(), c.features(), state, chunk);
}

// A weight's relative error is that of two log features, once in the numerator and once in the
// denominator; the sums over features and tokens add rounding of their own.
double output_tolerance(const AttentionCase& c) {
  const auto most = static_cast<double>(*std::max_element(c.counts.begin(), c.counts.end()));
  const double sums = kEps * (std::sqrt(most) + std::sqrt(static_cast<double>(c.tokens)) + 4);
  return 2 * (2 * c.log_feature_error() + sums) * c.largest_value();
}

// [B, H, T, D] to [B, T, H, D].
std::vector<double> heads_inside(const std::vector<double>& x, const AttentionCase& c) {
  std::vector<double> out;
  for (int64_t b = 0; b < c.batch; ++b)
    for (int64_t t = 0; t < c.tokens; ++t)
      for (int64_t h = 0; h < c.heads; ++h)
        for (int64_t d = 0; d < c.width; ++d)
          out.push_back(x[static_cast<size_t>(((b * c.heads + h) * c.tokens + t) * c.width + d)]);
  return out;
}

// Tokens [begin, end) of q, k, v.
AttentionCase tokens(const AttentionCase& c, int64_t begin, int64_t end) {
  AttentionCase out = c;
  out.tokens = end - begin;
  const auto cut = [&](const std::vector<double>& x) {
    std::vector<double> part;
    const int64_t size = c.tokens * c.width;
    for (size_t at = 0; at < x.size(); at += static_cast<size_t>(size)) {
      const auto from = x.begin() + static_cast<int64_t>(at);
      part.insert(part.end(), from + begin * c.width, from + end * c.width);
    }
    return part;
  };
  out.q = cut(c.q);
  out.k = cut(c.k);
  out.v = cut(c.v);
  return out;
}

TEST(LinearAttention, AllFormsMatchTheFixture) {
  const fs::path file = test::fixtures() / "features.safetensors";
  const AttentionCase c = reference::fixture_case(file);
  const Safetensors fixture(file);
  const auto expected = heads_inside(to_doubles(fixture.tensor("linear_attention.out")), c);
  for (const int64_t chunk : {1, 2, 7, 64, 1000}) {
    LinearAttentionState state = new_linear_attention_state(c.batch, c.features());
    expect_near(attend(c, chunk, &state), expected, output_tolerance(c),
                fmt::format("chunk {}", chunk));
    // The fixture's sums are not relative to a maximum.
    const auto a = to_doubles(fixture.tensor("linear_attention.state_a"));
    const auto b = to_doubles(fixture.tensor("linear_attention.state_b"));
    const double relative = c.log_feature_error() + kEps * std::sqrt(static_cast<double>(c.tokens));
    for (size_t i = 0; i < a.size(); ++i) {
      const double unit = std::exp(static_cast<double>(state.log_max.data<float>()[i]));
      EXPECT_NEAR(state.a.data<float>()[i] * unit, a[i], relative * a[i]);
      for (size_t d = 0; d < static_cast<size_t>(c.width); ++d) {
        const size_t at = i * static_cast<size_t>(c.width) + d;
        EXPECT_NEAR(state.b.data<float>()[at] * unit, b[at], relative * a[i] * c.largest_value());
      }
    }
  }
}

TEST(LinearAttention, SurvivesExtremeKeys) {
  const fs::path file = test::fixtures() / "features_extreme.safetensors";
  const AttentionCase c = reference::fixture_case(file);
  const auto expected = heads_inside(to_doubles(Safetensors(file).tensor("out")), c);
  for (const int64_t chunk : {1, 3, 64, 1000})
    expect_near(attend(c, chunk), expected, output_tolerance(c), fmt::format("chunk {}", chunk));
}

TEST(LinearAttention, MatchesTheReferenceAtEveryLength) {
  for (const int64_t length : {1, 63, 64, 65, 1000}) {
    const AttentionCase c = reference::random_case(
        {.batch = 2, .key_heads = 1, .tokens = length, .width = 20, .counts = {5, 33}});
    const std::vector<double> expected = reference::linear_attention(c);
    for (const int64_t chunk : {int64_t{1}, kLinearAttentionChunk, length})
      expect_near(attend(c, chunk), expected, output_tolerance(c),
                  fmt::format("{} tokens, chunk {}", length, chunk));
  }
}

TEST(LinearAttention, SharesKeyHeadsAndTakesRaggedFeatures) {
  const AttentionCase c = reference::random_case(
      {.batch = 2, .key_heads = 2, .tokens = 90, .width = 8, .counts = {1, 16, 40, 3}});
  for (const int64_t chunk : {1, 32})
    expect_near(attend(c, chunk), reference::linear_attention(c), output_tolerance(c), "out");
}

// Keys whose features grow by e^100 and more along the sequence: a maximum that looks ahead within
// a chunk would wipe out the rows before.
AttentionCase keys_that_grow() {
  AttentionCase c = reference::random_case({.tokens = 96, .width = 16, .counts = {12}});
  for (int64_t t = 0; t < c.tokens; ++t)
    for (int64_t d = 0; d < c.width; ++d)
      c.k[static_cast<size_t>(t * c.width + d)] *= static_cast<float>(t < 32   ? 30
                                                                      : t < 64 ? 12
                                                                               : 1);
  return c;
}

TEST(LinearAttention, KeepsRowsBeforeAGiantKey) {
  const AttentionCase c = keys_that_grow();
  const std::vector<double> expected = reference::linear_attention(c);
  for (const int64_t chunk : {1, 5, 64, 96})
    expect_near(attend(c, chunk), expected, output_tolerance(c), fmt::format("chunk {}", chunk));
}

TEST(LinearAttention, ASplitSequenceWithCarriedStateIsOneCall) {
  const AttentionCase c =
      reference::random_case({.batch = 2, .key_heads = 1, .tokens = 100, .counts = {9, 24}});
  const std::vector<double> whole = to_doubles(attend(c, 64));
  LinearAttentionState state = new_linear_attention_state(c.batch, c.features());
  const int64_t row = c.heads * c.width;
  int64_t begin = 0;
  for (const int64_t end : {1, 30, 31, 99, 100}) {
    const LinearAttentionState before = state.fork();
    const Tensor part = attend(tokens(c, begin, end), 64, &state);
    std::vector<double> expected;
    for (int64_t b = 0; b < c.batch; ++b)
      expected.insert(expected.end(), whole.begin() + (b * c.tokens + begin) * row,
                      whole.begin() + (b * c.tokens + end) * row);
    expect_near(part, expected, output_tolerance(c), "part");
    // Rolled back to the fork, the same tokens give the same bits.
    LinearAttentionState again = before.fork();
    EXPECT_EQ(to_doubles(attend(tokens(c, begin, end), 64, &again)), to_doubles(part));
    EXPECT_EQ(to_doubles(again.b), to_doubles(state.b));
    begin = end;
  }
  EXPECT_EQ(state.bytes(), c.batch * (9 + 24) * (c.width + 2) * 4);
}

TEST(LinearAttention, TheStateSurvivesAFile) {
  const AttentionCase c = reference::random_case({.tokens = 40, .counts = {7}});
  LinearAttentionState state = new_linear_attention_state(c.batch, c.features());
  attend(tokens(c, 0, 25), 16, &state);
  const test::ScratchFolder folder;
  write_safetensors(folder.path() / "state.safetensors",
                    {{"log_max", state.log_max}, {"a", state.a}, {"b", state.b}});
  const Safetensors file(folder.path() / "state.safetensors");
  LinearAttentionState restored{file.tensor("log_max").clone(), file.tensor("a").clone(),
                                file.tensor("b").clone()};
  const AttentionCase rest = tokens(c, 25, 40);
  EXPECT_EQ(to_doubles(attend(rest, 16, &restored)), to_doubles(attend(rest, 16, &state)));
}

TEST(LinearAttention, NoTokenSeesALaterOne) {
  const AttentionCase c = reference::random_case({.tokens = 80, .counts = {24}});
  AttentionCase changed = c;
  const int64_t first_changed = 50;
  for (int64_t i = first_changed * c.width; i < c.tokens * c.width; ++i) {
    changed.k[static_cast<size_t>(i)] *= 3;
    changed.v[static_cast<size_t>(i)] += 1;
  }
  const int64_t before = first_changed * c.heads * c.width;
  for (const int64_t chunk : {1, 16, 80}) {
    std::vector<double> expected = to_doubles(attend(c, chunk));
    std::vector<double> actual = to_doubles(attend(changed, chunk));
    EXPECT_NE(expected, actual);
    expected.resize(static_cast<size_t>(before));
    actual.resize(static_cast<size_t>(before));
    if (chunk == 1) {
      EXPECT_EQ(actual, expected);
    } else {
      expect_near(reference::to_tensor(actual, {before}), expected, output_tolerance(changed),
                  fmt::format("chunk {}", chunk));
    }
  }
}

std::vector<double> random_gradient(const AttentionCase& c) {
  Random random(77);
  std::vector<double> out(static_cast<size_t>(c.batch * c.tokens * c.heads * c.width));
  for (double& x : out) x = static_cast<float>(random.normal());
  return out;
}

// All five gradients within the relative error of a weight, times each one's sensitivity to it.
void expect_gradients(const AttentionCase& c, const std::vector<double>& grad_out,
                      const reference::LinearAttentionReference& expected, int64_t chunk) {
  const Tensor gradient = reference::to_tensor(grad_out, {c.batch, c.tokens, c.heads, c.width});
  const LinearAttentionGradients actual = linear_attention_backward(
      c.q_tensor(), c.k_tensor(), c.v_tensor(), c.features(), gradient, chunk);
  const double relative = output_tolerance(c) / c.largest_value();
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
  compare(actual.z, expected.z, "z");
  compare(actual.log_alpha, expected.log_alpha, "log_alpha");
}

TEST(LinearAttentionBackward, MatchesTheFixture) {
  const fs::path file = test::fixtures() / "features.safetensors";
  const AttentionCase c = reference::fixture_case(file);
  const Safetensors fixture(file);
  const auto grad_out = heads_inside(to_doubles(fixture.tensor("linear_attention.grad_out")), c);
  reference::LinearAttentionReference expected = reference::linear_attention_backward(c, grad_out);
  expected.q.value = to_doubles(fixture.tensor("linear_attention.grad_q"));
  expected.k.value = to_doubles(fixture.tensor("linear_attention.grad_k"));
  expected.v.value = to_doubles(fixture.tensor("linear_attention.grad_v"));
  expected.z.value = to_doubles(fixture.tensor("linear_attention.grad_z"));
  expected.log_alpha.value = to_doubles(fixture.tensor("linear_attention.grad_log_alpha"));
  for (const int64_t chunk : {1, 7, 64, 1000}) expect_gradients(c, grad_out, expected, chunk);
}

// The reference's gradients against the slope of Σ grad_out · out along a random direction.
TEST(LinearAttentionBackward, TheReferenceHasTheSlopesItClaims) {
  const AttentionCase c = reference::random_case(
      {.batch = 2, .key_heads = 1, .tokens = 9, .width = 8, .counts = {3, 10}, .key_scale = 3});
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
  nudge(&AttentionCase::z, at.z);
  nudge(&AttentionCase::log_alpha, at.log_alpha);
  const std::vector<double> above = reference::linear_attention(up);
  const std::vector<double> below = reference::linear_attention(down);
  double difference = 0;
  for (size_t i = 0; i < above.size(); ++i)
    difference += grad_out[i] * (above[i] - below[i]) / (2 * step);
  EXPECT_NEAR(slope, difference, 1e-7 * size);
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
  const AttentionCase c = keys_that_grow();
  const std::vector<double> grad_out = random_gradient(c);
  const auto expected = reference::linear_attention_backward(c, grad_out);
  for (const int64_t chunk : {1, 5, 64, 96}) expect_gradients(c, grad_out, expected, chunk);
}

TEST(LinearAttention, RefusesWhatDoesNotFit) {
  const AttentionCase c = reference::random_case({.tokens = 4, .counts = {3, 5}});
  const Features features = c.features();
  const Tensor q = c.q_tensor(), k = c.k_tensor(), v = c.v_tensor();
  EXPECT_THROW(linear_attention(k, k, v, features), std::invalid_argument);
  EXPECT_THROW(linear_attention(q, k, q, features), std::invalid_argument);
  EXPECT_THROW(linear_attention(q.to(DType::kF64), k, v, features), std::invalid_argument);
  EXPECT_THROW(linear_attention(q, k, v, features, nullptr, 0), std::invalid_argument);
  LinearAttentionState other = new_linear_attention_state(2, features);
  EXPECT_THROW(linear_attention(q, k, v, features, &other), std::invalid_argument);
  Features none = features;
  none.counts = {8, 0};
  EXPECT_THROW(linear_attention(q, k, v, none), std::invalid_argument);
}

}  // namespace
}  // namespace dofla
