#include "dofla/ops/exact_keys.h"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include "dofla/ops/softmax_attention.h"
#include "tests/reference/compare.h"
#include "tests/reference/hybrid_attention.h"
#include "tests/reference/linear_attention.h"

namespace dofla {
namespace {

using reference::AttentionCase;

// What the evictions say is held, in the reference's form.
reference::HeldKeys held_by(const Evictions& evictions, const ExactKeys& exact, int64_t heads,
                            int64_t tokens) {
  reference::HeldKeys held;
  const int64_t times = times_evicted(exact, tokens);
  for (int64_t head = 0; head < heads; ++head) {
    std::vector<char> has(static_cast<size_t>(tokens), 0);
    for (int64_t t = 0; t < tokens; ++t) {
      if (t >= exact.keys && (t - exact.keys) % exact.block == 0) {
        const int64_t n = (t - exact.keys) / exact.block;
        for (int64_t i = 0; i < exact.block; ++i)
          has[static_cast<size_t>(
              evictions.order.data<int32_t>()[(head * times + n) * exact.block + i])] = 0;
      }
      has[static_cast<size_t>(t)] = 1;
      held.insert(held.end(), has.begin(), has.end());
    }
  }
  return held;
}

ExactKeys small_cache(int64_t keys = 14, int64_t block = 4) {
  return {.keys = keys, .sinks = 2, .recent = 3, .block = block};
}

TEST(ExactKeys, LeaveAsTheDefinitionSays) {
  for (const int64_t tokens : {1, 13, 14, 15, 18, 19, 90}) {
    for (const KeyPolicy policy : {KeyPolicy::kAttended, KeyPolicy::kRecent}) {
      const AttentionCase c = reference::random_case(
          {.batch = 2, .key_heads = 2, .tokens = tokens, .counts = {4, 4, 4, 4}});
      ExactKeys exact = small_cache();
      exact.policy = policy;
      ASSERT_GT(reference::closest_choice(c, exact), policy == KeyPolicy::kRecent ? -1 : 1e-5);
      const Evictions evictions = evict_keys(c.q_tensor(), c.k_tensor(), exact);
      EXPECT_EQ(held_by(evictions, exact, c.batch * c.key_heads, tokens),
                reference::held_keys(c, exact))
          << tokens;
      const reference::HeldKeys last = reference::held_keys(c, exact);
      ASSERT_EQ(evictions.held.shape(), (Shape{c.batch, 1, c.key_heads * exact.keys}));
      for (int64_t i = 0; i < evictions.held.count(); ++i) {
        const int64_t head = i / exact.keys, row = evictions.held.data<int32_t>()[i];
        if (i % exact.keys >= keys_held(exact, tokens)) {
          EXPECT_EQ(row, -1);
          continue;
        }
        const int64_t key = row - head % c.key_heads * tokens;
        EXPECT_EQ(last[static_cast<size_t>(((head + 1) * tokens - 1) * tokens + key)], 1);
      }
    }
  }
}

TEST(ExactKeys, OfEqualScoresTheOlderLeavesFirst) {
  AttentionCase c = reference::random_case({.tokens = 40});
  std::ranges::fill(c.q, 0.0);
  ExactKeys exact = small_cache();
  // Every query attends to all alike, but to more of them as they come.
  const Evictions evictions = evict_keys(c.q_tensor(), c.k_tensor(), exact);
  EXPECT_EQ(held_by(evictions, exact, 1, 40), reference::held_keys(c, exact));
  // Without any score at all, what is oldest leaves.
  const Tensor none = Tensor::zeros({1, 14});
  const Tensor q = c.q_tensor().reshape({1, 1, 40, 16});
  Tensor last({1, 1, 1, 16});
  std::copy_n(q.data<float>(), 16, last.data<float>());
  Tensor fifteen({1, 1, 15, 16});
  std::copy_n(c.k_tensor().data<float>(), fifteen.count(), fifteen.data<float>());
  const Evictions one = evict_keys(last, fifteen, exact, none, 14);
  for (int32_t i = 0; i < 4; ++i) EXPECT_EQ(one.order.data<int32_t>()[i], 2 + i);
}

TEST(ExactKeys, AttentionAndGradientsMatchTheDefinition) {
  for (const int64_t tokens : {5, 14, 15, 17, 70}) {
    const AttentionCase c = reference::random_case(
        {.batch = 2, .key_heads = 2, .tokens = tokens, .width = 8, .counts = {4, 4, 4, 4}});
    const ExactKeys exact = small_cache();
    const Evictions evictions = evict_keys(c.q_tensor(), c.k_tensor(), exact);
    const reference::HeldKeys held = held_by(evictions, exact, c.batch * c.key_heads, tokens);
    AttentionTape tape;
    tape.out =
        exact_attention(c.q_tensor(), c.k_tensor(), c.v_tensor(), exact, evictions, &tape.log_sum);
    reference::expect_near(tape.out, reference::hybrid_attention(c, held, false),
                           reference::output_tolerance(c), "out");
  }
}

TEST(ExactKeys, AsManyAsTokensAreSoftmaxAttention) {
  const AttentionCase c =
      reference::random_case({.batch = 2, .key_heads = 2, .tokens = 100, .counts = {4, 4, 4, 4}});
  const ExactKeys exact = {.keys = 100};
  const Tensor q = c.q_tensor(), k = c.k_tensor(), v = c.v_tensor();
  const Evictions none = evict_keys(q, k, exact);
  AttentionTape tape;
  tape.out = exact_attention(q, k, v, exact, none, &tape.log_sum);
  const double tolerance = reference::output_tolerance(c);
  reference::expect_near(tape.out, reference::to_doubles(softmax_attention(q, k, v, 100)),
                         2 * tolerance, "out");
  const ExactAttentionGradients found =
      exact_attention_backward(q, k, v, exact, none, tape.out, tape);
  const SoftmaxAttentionGradients expected = softmax_attention_backward(q, k, v, tape.out);
  const auto compare = [&](const Tensor& one, const Tensor& other, const char* what) {
    reference::expect_near(one, reference::to_doubles(other), 100 * tolerance, what);
  };
  compare(found.q, expected.q, "grad q");
  compare(found.k, expected.k, "grad k");
  compare(found.v, expected.v, "grad v");
}

TEST(ExactKeys, TheLeastCacheIsTheLeast) {
  for (ExactKeys kind : {ExactKeys{}, ExactKeys{.sinks = 1, .recent = 5, .block = 4}}) {
    const int64_t least = least_keys(kind);
    for (const int64_t keys : {least, least + 1}) {
      kind.keys = keys;
      EXPECT_NO_THROW(require_valid(kind)) << keys;
    }
    kind.keys = least - 1;
    EXPECT_THROW(require_valid(kind), std::invalid_argument) << least;
  }
}

TEST(ExactKeys, RefuseWhatNoCacheCanHold) {
  EXPECT_NO_THROW(require_valid({.keys = 24}));
  EXPECT_NO_THROW(require_valid({.keys = 40, .head_keys = {40, 32}}));
  for (const ExactKeys& wrong :
       {ExactKeys{.keys = 23}, ExactKeys{.keys = -1}, ExactKeys{.keys = 100, .sinks = -1},
        ExactKeys{.keys = 100, .recent = -1}, ExactKeys{.keys = 100, .block = 24},
        ExactKeys{.keys = 100, .block = 0}, ExactKeys{.keys = 100, .decay = 0},
        ExactKeys{.keys = 100, .decay = 1}, ExactKeys{.keys = 40, .head_keys = {40, 36}},
        ExactKeys{.keys = 40, .head_keys = {32, 32}}})
    EXPECT_THROW(require_valid(wrong), std::invalid_argument);
}

}  // namespace
}  // namespace dofla
