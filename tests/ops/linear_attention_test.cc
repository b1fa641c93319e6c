#include "dofla/ops/linear_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "dofla/checkpoint/safetensors.h"
#include "tests/reference/attention_case.h"
#include "tests/reference/compare.h"
#include "tests/reference/linear_attention.h"
#include "tests/reference/slopes.h"
#include "tests/support/fixtures.h"
#include "tests/support/tolerance.h"

namespace dofla {
namespace {

using reference::AttentionCase;
using reference::expect_near;
using reference::to_doubles;

Tensor attend(const AttentionCase& c, int64_t chunk, LinearAttentionState* state = nullptr,
              AttentionTape* tape = nullptr) {
  return linear_attention(c.q_tensor(), c.k_tensor(), c.v_tensor(), c.features(), state, chunk,
                          tape, c.block);
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
  const auto expected =
      reference::heads_inside(to_doubles(fixture.tensor("linear_attention.out")), c);
  for (const int64_t chunk : {1, 2, 7, 64, 1000}) {
    LinearAttentionState state = new_linear_attention_state(c.batch, c.features());
    expect_near(attend(c, chunk, &state), expected, reference::output_tolerance(c),
                fmt::format("chunk {}", chunk));
    // The fixture's sums are not relative to a maximum.
    const auto a = to_doubles(fixture.tensor("linear_attention.state_a"));
    const auto b = to_doubles(fixture.tensor("linear_attention.state_b"));
    const double relative =
        c.log_feature_error() + test::kFloat32Epsilon * std::sqrt(static_cast<double>(c.tokens));
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
  const auto expected = reference::heads_inside(to_doubles(Safetensors(file).tensor("out")), c);
  for (const int64_t chunk : {1, 3, 64, 1000})
    expect_near(attend(c, chunk), expected, reference::output_tolerance(c),
                fmt::format("chunk {}", chunk));
}

TEST(LinearAttention, MatchesTheReferenceAtEveryLength) {
  for (const int64_t length : {1, 63, 64, 65, 1000}) {
    const AttentionCase c = reference::random_case(
        {.batch = 2, .key_heads = 1, .tokens = length, .width = 20, .counts = {5, 33}});
    const std::vector<double> expected = reference::linear_attention(c);
    for (const int64_t chunk : {int64_t{1}, kLinearAttentionChunk, length})
      expect_near(attend(c, chunk), expected, reference::output_tolerance(c),
                  fmt::format("{} tokens, chunk {}", length, chunk));
  }
}

TEST(LinearAttention, SharesKeyHeadsAndTakesRaggedFeatures) {
  const AttentionCase c = reference::random_case(
      {.batch = 2, .key_heads = 2, .tokens = 90, .width = 8, .counts = {1, 16, 40, 3}});
  for (const int64_t chunk : {1, 32})
    expect_near(attend(c, chunk), reference::linear_attention(c), reference::output_tolerance(c),
                "out");
}

TEST(LinearAttention, KeepsRowsBeforeAGiantKey) {
  const AttentionCase c = reference::keys_that_grow();
  const std::vector<double> expected = reference::linear_attention(c);
  for (const int64_t chunk : {1, 5, 64, 96})
    expect_near(attend(c, chunk), expected, reference::output_tolerance(c),
                fmt::format("chunk {}", chunk));
}

// log Σ_j K̂(q_i, k_j) without −|q_i|²/(2√d), [B, H, T].
std::vector<double> log_sums(const AttentionCase& c) {
  std::vector<double> out;
  for (int64_t head = 0; head < c.batch * c.heads; ++head) {
    const std::vector<double> logs = reference::log_kernel_hat(c, head / c.heads, head % c.heads);
    for (int64_t i = 0; i < c.tokens; ++i) {
      double norm = 0;
      for (int64_t d = 0; d < c.width; ++d)
        norm += std::pow(c.q[static_cast<size_t>((head * c.tokens + i) * c.width + d)], 2);
      out.push_back(reference::log_sum_exp(logs.data() + i * c.tokens, c.keys_seen(i)) +
                    norm / (2 * std::sqrt(static_cast<double>(c.width))));
    }
  }
  return out;
}

// In all forms, of tied features whose query heads share keys and of untied ones that share states.
TEST(LinearAttention, KeysComeABlockAtATime) {
  for (const int64_t group : {0, 2})
    for (const int64_t block : {1, 2, 16, 64})
      for (const int64_t blocks : {1, 3}) {
        const AttentionCase c = reference::random_case({.batch = 2,
                                                        .key_heads = 1,
                                                        .tokens = blocks * block,
                                                        .width = 12,
                                                        .counts = {5, 33},
                                                        .group = group,
                                                        .block = block});
        const std::vector<double> expected = reference::linear_attention(c), sums = log_sums(c);
        const double error =
            reference::weight_error(c) + test::kFloat32Epsilon * reference::largest(sums);
        for (const int64_t chunk : {int64_t{1}, int64_t{5}, kLinearAttentionChunk, c.tokens}) {
          const std::string what = fmt::format("{} blocks of {}, chunk {}", blocks, block, chunk);
          AttentionTape tape;
          expect_near(attend(c, chunk, nullptr, &tape), expected, reference::output_tolerance(c),
                      what);
          expect_near(tape.log_sum, sums, error, what);
        }
      }
}

TEST(LinearAttention, KeepsBlocksBeforeAGiantKey) {
  AttentionCase c = reference::keys_that_grow();
  for (const int64_t block : {2, 16, 32}) {
    c.block = block;
    const std::vector<double> expected = reference::linear_attention(c);
    for (const int64_t chunk : {1, 48, 96})
      expect_near(attend(c, chunk), expected, reference::output_tolerance(c),
                  fmt::format("block {}, chunk {}", block, chunk));
  }
}

// A tape with a state has the log sums over what the state holds as well.
TEST(LinearAttention, ASequenceSplitBetweenBlocksIsOneCall) {
  const AttentionCase c = reference::random_case(
      {.batch = 2, .tokens = 96, .width = 8, .counts = {9, 24}, .group = 2, .block = 16});
  const std::vector<double> whole = reference::linear_attention(c), sums = log_sums(c);
  LinearAttentionState state = new_linear_attention_state(c.batch, c.features());
  int64_t begin = 0;
  for (const int64_t end : {16, 48, 96}) {
    AttentionTape tape;
    const Tensor part = attend(tokens(c, begin, end), 64, &state, &tape);
    std::vector<double> expected, expected_sums;
    const int64_t row = c.heads * c.width;
    for (int64_t b = 0; b < c.batch; ++b)
      expected.insert(expected.end(), whole.begin() + (b * c.tokens + begin) * row,
                      whole.begin() + (b * c.tokens + end) * row);
    for (int64_t head = 0; head < c.batch * c.heads; ++head)
      expected_sums.insert(expected_sums.end(), sums.begin() + head * c.tokens + begin,
                           sums.begin() + head * c.tokens + end);
    expect_near(part, expected, reference::output_tolerance(c), "part");
    expect_near(tape.log_sum, expected_sums,
                reference::weight_error(c) + test::kFloat32Epsilon * reference::largest(sums),
                "log sums");
    begin = end;
  }
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
    expect_near(part, expected, reference::output_tolerance(c), "part");
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
      expect_near(reference::to_tensor(actual, {before}), expected,
                  reference::output_tolerance(changed), fmt::format("chunk {}", chunk));
    }
  }
}

TEST(LinearAttention, RefusesWhatDoesNotFit) {
  const AttentionCase c = reference::random_case({.tokens = 4, .counts = {3, 5}});
  const Features features = c.features();
  const Tensor q = c.q_tensor(), k = c.k_tensor(), v = c.v_tensor();
  EXPECT_THROW(linear_attention(k, k, v, features), std::invalid_argument);
  EXPECT_THROW(linear_attention(q, k, q, features), std::invalid_argument);
  EXPECT_THROW(linear_attention(q.to(DType::kF64), k, v, features), std::invalid_argument);
  EXPECT_THROW(linear_attention(q, k, v, features, nullptr, 0), std::invalid_argument);
  for (const int64_t block : {0, 3, 8, 128})  // 8 does not divide the 4 tokens
    EXPECT_THROW(linear_attention(q, k, v, features, nullptr, 64, nullptr, block),
                 std::invalid_argument)
        << block;
  LinearAttentionState other = new_linear_attention_state(2, features);
  EXPECT_THROW(linear_attention(q, k, v, features, &other), std::invalid_argument);
  Features none = features;
  none.counts = {8, 0};
  EXPECT_THROW(linear_attention(q, k, v, none), std::invalid_argument);
}

}  // namespace
}  // namespace dofla
