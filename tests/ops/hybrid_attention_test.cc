#include "dofla/ops/hybrid_attention.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "dofla/core/random.h"
#include "dofla/ops/heads.h"
#include "tests/reference/compare.h"
#include "tests/reference/hybrid_attention.h"
#include "tests/reference/linear_attention.h"
#include "tests/reference/slopes.h"
#include "tests/support/fixtures.h"

namespace dofla {
namespace {

using reference::AttentionCase;

constexpr ExactKeys kCache = {.keys = 14, .sinks = 2, .recent = 3, .block = 4};

// Two query heads a key head, with a state each or one for both.
AttentionCase grouped_case(bool untied, int64_t tokens, int64_t width = 8, int64_t batch = 2) {
  reference::CaseOptions options = {
      .batch = batch, .key_heads = 2, .tokens = tokens, .width = width};
  options.counts = untied ? std::vector<int64_t>{5, 9} : std::vector<int64_t>{5, 9, 7, 6};
  options.group = untied ? 2 : 0;
  return reference::random_case(options);
}

Tensor part_of(const Tensor& heads, int64_t begin, int64_t end) {
  return contiguous_heads(tokens_of(heads, begin, end));
}

TEST(HybridAttention, MatchesTheDefinition) {
  for (const bool untied : {false, true}) {
    for (const int64_t tokens : {1, 14, 15, 18, 19, 100}) {
      const AttentionCase c = grouped_case(untied, tokens);
      ASSERT_GT(reference::closest_choice(c, kCache), 1e-5);
      reference::expect_near(
          hybrid_attention(c.q_tensor(), c.k_tensor(), c.v_tensor(), c.features(), kCache),
          reference::hybrid_attention(c, reference::held_keys(c, kCache)),
          reference::output_tolerance(c), fmt::format("{} tokens", tokens));
    }
  }
}

// Long keys, whose features span hundreds of nats.
TEST(HybridAttention, HoldsForHugeKeys) {
  const AttentionCase c =
      reference::fixture_case(test::fixtures() / "features_extreme.safetensors");
  const ExactKeys cache = {
      .keys = std::max<int64_t>(14, c.tokens / 3), .sinks = 2, .recent = 3, .block = 4};
  const std::vector<double> expected =
      reference::hybrid_attention(c, reference::held_keys(c, cache));
  if (reference::closest_choice(c, cache) < 1e-4)
    GTEST_SKIP() << "the choice is a matter of rounding";
  reference::expect_near(
      hybrid_attention(c.q_tensor(), c.k_tensor(), c.v_tensor(), c.features(), cache), expected,
      reference::output_tolerance(c), "out");
}

TEST(HybridAttention, WithoutFeaturesWhatLeavesIsForgotten) {
  const AttentionCase c = grouped_case(true, 60);
  reference::expect_near(hybrid_attention(c.q_tensor(), c.k_tensor(), c.v_tensor(), {}, kCache),
                         reference::hybrid_attention(c, reference::held_keys(c, kCache), false),
                         reference::output_tolerance(c), "out");
}

// However a sequence is cut, token by token or in pieces, its outputs are the same.
TEST(HybridAttention, SplitAnywhereItGoesOn) {
  for (const bool untied : {false, true}) {
    for (const bool features : {false, true}) {
      const AttentionCase c = grouped_case(untied, 71);
      const Features own = features ? c.features() : Features();
      const Tensor q = c.q_tensor(), k = c.k_tensor(), v = c.v_tensor();
      const Tensor whole = hybrid_attention(q, k, v, own, kCache);
      const std::vector<double> expected = reference::to_doubles(whole);
      for (const std::vector<int64_t>& cuts :
           {std::vector<int64_t>{1, 2, 3}, {7}, {14}, {15}, {16, 17}, {18}, {30, 31, 50}, {70}}) {
        HybridAttentionState state =
            new_hybrid_attention_state(c.batch, c.key_heads, c.width, DType::kF32, {}, own, kCache);
        std::vector<int64_t> ends = cuts;
        ends.push_back(c.tokens);
        int64_t begin = 0;
        for (const int64_t end : ends) {
          const Tensor out = hybrid_attention(part_of(q, begin, end), part_of(k, begin, end),
                                              part_of(v, begin, end), own, kCache, &state, begin);
          const int64_t row = c.heads * c.width;
          for (int64_t b = 0; b < c.batch; ++b)
            for (int64_t i = 0; i < (end - begin) * row; ++i)
              ASSERT_NEAR(out.data<float>()[b * (end - begin) * row + i],
                          expected[static_cast<size_t>((b * c.tokens + begin) * row + i)],
                          2 * reference::output_tolerance(c))
                  << "cut at " << begin;
          begin = end;
        }
      }
    }
  }
}

// Sequences of different lengths step side by side.
TEST(HybridAttention, StepsOfDifferentSequencesDoNotMeet) {
  const AttentionCase c = grouped_case(true, 40);
  const Features own = c.features();
  const Tensor q = c.q_tensor(), k = c.k_tensor(), v = c.v_tensor();
  const std::vector<double> expected =
      reference::to_doubles(hybrid_attention(q, k, v, own, kCache));
  HybridAttentionState state =
      new_hybrid_attention_state(2, c.key_heads, c.width, DType::kF32, {}, own, kCache);
  const int64_t behind = 5;  // the second sequence begins so many steps later
  for (int64_t step = 0; step < c.tokens; ++step) {
    Tensor past({2}, DType::kI64);
    past.data<int64_t>()[0] = step;
    past.data<int64_t>()[1] = std::max<int64_t>(step - behind, 0);
    const auto token = [&](const Tensor& x) {
      Tensor out({2, x.size(1), 1, c.width});
      for (int64_t b = 0; b < 2; ++b)
        std::ranges::copy_n(
            part_of(x.slice(b, b + 1), past.data<int64_t>()[b], past.data<int64_t>()[b] + 1)
                .data<float>(),
            x.size(1) * c.width, out.data<float>() + b * x.size(1) * c.width);
      return out;
    };
    if (step < behind) {  // it waits: an empty state
      for (Tensor* part : {&state.score, &state.left.a, &state.left.b}) {
        Tensor second = part->slice(1, 2);
        second.assign(Tensor::zeros(second.shape()));
      }
    }
    const Tensor out =
        hybrid_attention_step(token(q), token(k), token(v), own, kCache, state, past);
    const int64_t row = c.heads * c.width;
    for (int64_t b = 0; b < 2; ++b) {
      if (b == 1 && step < behind) continue;
      for (int64_t i = 0; i < row; ++i)
        ASSERT_NEAR(
            out.data<float>()[b * row + i],
            expected[static_cast<size_t>((b * c.tokens + past.data<int64_t>()[b]) * row + i)],
            2 * reference::output_tolerance(c))
            << "sequence " << b << " step " << step;
    }
  }
}

// Against slopes of the definition, with the choice of keys held fixed.
TEST(HybridAttention, GradientsAreSlopes) {
  for (const bool untied : {false, true}) {
    AttentionCase c = grouped_case(untied, 23, 4, 1);
    const reference::HeldKeys held = reference::held_keys(c, kCache);
    Random random(5);
    std::vector<double> grad(static_cast<size_t>(c.batch * c.tokens * c.heads * c.width));
    for (double& x : grad) x = static_cast<float>(random.normal());
    const auto value = [&] {
      const std::vector<double> out = reference::hybrid_attention(c, held);
      double sum = 0;
      for (size_t i = 0; i < out.size(); ++i) sum += out[i] * grad[i];
      return sum;
    };
    AttentionTape tape;
    const Tensor q = c.q_tensor(), k = c.k_tensor(), v = c.v_tensor();
    hybrid_attention(q, k, v, c.features(), kCache, nullptr, 0, &tape);
    const LinearAttentionGradients found = hybrid_attention_backward(
        q, k, v, c.features(), kCache,
        reference::to_tensor(grad, {c.batch, c.tokens, c.heads, c.width}), tape);
    const auto compare = [&](const Tensor& actual, std::vector<double>& x, const char* what) {
      const std::vector<double> expected = reference::slopes(x, value);
      const double size = reference::largest(expected);
      reference::expect_near(actual, expected,
                             10 * reference::weight_error(c) * size + reference::slope_error(size),
                             what);
    };
    compare(found.q, c.q, "grad q");
    compare(found.k, c.k, "grad k");
    compare(found.v, c.v, "grad v");
    compare(found.features.z, c.z, "grad z");
    compare(found.features.log_alpha, c.log_alpha, "grad log alpha");
    if (!untied) continue;
    compare(found.features.u, c.u, "grad u");
    compare(found.features.norm_weight, c.norm_weight, "grad norm weight");
  }
}

// What is left to features: every query that sees keys which have left, and these keys.
TEST(HybridAttention, LeftPairsAreThoseThatAreNotHeld) {
  const AttentionCase c = grouped_case(true, 41);
  const LeftPairs left = left_pairs(c.q_tensor(), c.k_tensor(), c.v_tensor(), kCache);
  const reference::HeldKeys held = reference::held_keys(c, kCache);
  const int64_t rows = (41 - 14) / 4 * 4, T = c.tokens;
  ASSERT_EQ(left.q.size(2), rows);
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int64_t h = 0; h < c.heads; ++h) {
      const int64_t key_head = b * c.key_heads + h / 2;
      const std::vector<double> kernel = reference::log_kernel(c, b, h);
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t i = 14 + r;
        std::vector<double> exact;
        double left_sum = 0;
        for (int64_t j = 0; j <= i; ++j) {
          const double logit = kernel[static_cast<size_t>(i * T + j)];
          if (held[static_cast<size_t>((key_head * T + i) * T + j)] != 0)
            exact.push_back(logit);
          else
            left_sum += std::exp(logit);
        }
        EXPECT_NEAR(left.rest.data<float>()[(b * c.heads + h) * rows + r],
                    reference::log_sum_exp(exact.data(), static_cast<int64_t>(exact.size())), 1e-5);
        double sum = 0;
        for (int64_t j = 0; j < (r / 4 + 1) * 4; ++j) {
          double dot = 0;
          for (int64_t x = 0; x < c.width; ++x)
            dot += double{left.q.data<float>()[((b * c.heads + h) * rows + r) * c.width + x]} *
                   left.k.data<float>()[(key_head * rows + j) * c.width + x];
          sum += std::exp(dot / std::sqrt(static_cast<double>(c.width)));
        }
        EXPECT_NEAR(sum, left_sum, 1e-5 * left_sum);
      }
    }
  }
  EXPECT_THROW(left_pairs(part_of(c.q_tensor(), 0, 17), part_of(c.k_tensor(), 0, 17),
                          part_of(c.v_tensor(), 0, 17), kCache),
               std::invalid_argument);
}

}  // namespace
}  // namespace dofla
