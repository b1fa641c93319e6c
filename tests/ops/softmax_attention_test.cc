#include "dofla/ops/softmax_attention.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "tests/reference/attention_case.h"
#include "tests/reference/compare.h"
#include "tests/reference/linear_attention.h"
#include "tests/reference/slopes.h"
#include "tests/support/random_values.h"
#include "tests/support/tolerance.h"

namespace dofla {
namespace {

using reference::AttentionCase;

// Softmax attention by its definition, [B, T, H, D].
std::vector<double> softmax_outputs(const AttentionCase& c) {
  std::vector<double> out(static_cast<size_t>(c.batch * c.tokens * c.heads * c.width), 0.0);
  const int64_t size = c.tokens * c.width;
  for (int64_t head = 0; head < c.batch * c.heads; ++head) {
    const int64_t b = head / c.heads, h = head % c.heads;
    const int64_t source = b * c.key_heads + h / (c.heads / c.key_heads);
    const double *q = c.q.data() + head * size, *k = c.k.data() + source * size;
    const double* v = c.v.data() + source * size;
    for (int64_t i = 0; i < c.tokens; ++i) {
      std::vector<double> weight;
      double total = 0;
      for (int64_t j = 0; j <= i; ++j) {
        double score = 0;
        for (int64_t d = 0; d < c.width; ++d) score += q[i * c.width + d] * k[j * c.width + d];
        weight.push_back(std::exp(score / std::sqrt(static_cast<double>(c.width))));
        total += weight.back();
      }
      double* to = out.data() + ((b * c.tokens + i) * c.heads + h) * c.width;
      for (int64_t j = 0; j <= i; ++j)
        for (int64_t d = 0; d < c.width; ++d)
          to[d] += weight[static_cast<size_t>(j)] / total * v[j * c.width + d];
    }
  }
  return out;
}

// Weights carry the relative error of their score; a gradient sums over the tokens, the query heads
// of a group and the width, with errors of either sign.
double gradient_tolerance(const AttentionCase& c, const std::vector<double>& expected) {
  const double norm = c.largest_norm();
  const double score = test::float32_tolerance(c.width, 1, norm * norm / std::sqrt(c.width));
  const double sums = test::float32_tolerance(c.tokens * c.heads / c.key_heads, 4, 1);
  const double size = reference::largest(expected);
  return size * (2 * score + sums) + reference::slope_error(size);
}

// Tokens from `first` on, of x [.., tokens, row].
std::vector<double> tokens_from(int64_t first, const std::vector<double>& x, int64_t tokens,
                                int64_t row) {
  std::vector<double> out;
  for (auto at = x.begin(); at != x.end(); at += tokens * row)
    out.insert(out.end(), at + first * row, at + tokens * row);
  return out;
}

// Only tokens from `first_query` on ask. The backward gets the keys from `first_key` on, and, where
// those are not all, the tape of attention to all; the others are 0, so that they add nothing to
// the gradients of queries.
void expect_softmax_slopes(AttentionCase c, int64_t first_query = 0, int64_t first_key = 0) {
  Random random(12);
  const int64_t keys = c.tokens - first_key, queries = c.tokens - first_query;
  const auto last = [&](int64_t first, const std::vector<double>& x, int64_t row) {
    return tokens_from(first, x, c.tokens, row);
  };
  for (size_t i = 0; i < c.k.size(); ++i)
    if (static_cast<int64_t>(i) / c.width % c.tokens < first_key) c.k[i] = 0;
  std::vector<double> grad = test::normal_values(c.batch * c.tokens * c.heads * c.width, random);
  for (size_t i = 0; i < grad.size(); ++i)
    if (static_cast<int64_t>(i) / (c.heads * c.width) % c.tokens < first_query) grad[i] = 0;
  const Tensor q =
      reference::to_tensor(last(first_query, c.q, c.width), {c.batch, c.heads, queries, c.width});
  const Shape of_keys = {c.batch, c.key_heads, keys, c.width};
  AttentionTape tape;
  if (first_key > 0) softmax_attention(q, c.k_tensor(), c.v_tensor(), c.tokens, &tape);
  const SoftmaxAttentionGradients found =
      softmax_attention_backward(q, reference::to_tensor(last(first_key, c.k, c.width), of_keys),
                                 reference::to_tensor(last(first_key, c.v, c.width), of_keys),
                                 reference::to_tensor(last(first_query, grad, c.heads * c.width),
                                                      {c.batch, queries, c.heads, c.width}),
                                 tape);
  const auto loss = [&] {
    const std::vector<double> out = softmax_outputs(c);
    double sum = 0;
    for (size_t i = 0; i < out.size(); ++i) sum += grad[i] * out[i];
    return sum;
  };
  const auto compare = [&](std::vector<double>& x, const Tensor& gradient, int64_t first,
                           const char* what) {
    const std::vector<double> expected = last(first, reference::slopes(x, loss), c.width);
    reference::expect_near(gradient, expected, gradient_tolerance(c, expected),
                           fmt::format("{} tokens: grad {}", c.tokens, what));
  };
  compare(c.q, found.q, first_query, "q");
  compare(c.k, found.k, first_key, "k");
  compare(c.v, found.v, first_key, "v");
}

// A score's rounding moves its weight; the sum over the keys rounds as well.
double softmax_tolerance(const AttentionCase& c) {
  const double norm = c.largest_norm();
  const double score = test::float32_tolerance(c.width, 1, norm * norm / std::sqrt(c.width));
  return c.largest_value() * (2 * score + test::float32_tolerance(c.tokens, 2, 1));
}

// 1000 keys are several tiles: sums of earlier ones are scaled down when a larger score comes.
TEST(SoftmaxAttention, IsItsDefinition) {
  for (const int64_t length : {1, 63, 64, 65, 1000}) {
    const AttentionCase c = reference::random_case(
        {.batch = 2, .key_heads = 2, .tokens = length, .width = 5, .counts = {1, 1, 1, 1}});
    AttentionTape tape;
    reference::expect_near(
        softmax_attention(c.q_tensor(), c.k_tensor(), c.v_tensor(), length, &tape),
        softmax_outputs(c), softmax_tolerance(c), fmt::format("{} tokens", length));
    std::vector<double> sums;
    for (int64_t head = 0; head < c.batch * c.heads; ++head) {
      const std::vector<double> logs = reference::log_kernel(c, head / c.heads, head % c.heads);
      for (int64_t i = 0; i < length; ++i)
        sums.push_back(reference::log_sum_exp(logs.data() + i * length, i + 1));
    }
    reference::expect_near(tape.log_sum, sums, softmax_tolerance(c) / c.largest_value(),
                           fmt::format("log sums of {} tokens", length));
  }
}

// With a cache the queries are those of the last tokens: 1, which has a loop of its own, or more.
TEST(SoftmaxAttention, QueriesSeeWhatCameBefore) {
  const AttentionCase c = reference::random_case({.tokens = 300, .width = 8, .counts = {1}});
  const std::vector<double> all = softmax_outputs(c);
  const Tensor q = c.q_tensor().reshape({c.tokens, c.width});
  for (const int64_t last : {1, 7}) {
    const Tensor queries = q.slice(c.tokens - last, c.tokens).reshape({1, 1, last, c.width});
    reference::expect_near(softmax_attention(queries, c.k_tensor(), c.v_tensor(), c.tokens),
                           {all.end() - last * c.width, all.end()}, softmax_tolerance(c),
                           fmt::format("the last {}", last));
  }
}

TEST(SoftmaxAttentionBackward, HasTheSlopesOfTheForward) {
  for (const int64_t length : {1, 63, 64, 65})
    expect_softmax_slopes(reference::random_case(
        {.batch = 1, .key_heads = 1, .tokens = length, .width = 3, .counts = {1}}));
}

TEST(SoftmaxAttentionBackward, QueryHeadsOfAGroupAddUp) {
  expect_softmax_slopes(reference::random_case(
      {.batch = 2, .key_heads = 2, .tokens = 9, .width = 5, .counts = {1, 1, 1, 1, 1, 1}}));
}

TEST(SoftmaxAttentionBackward, QueriesSeeWhatCameBefore) {
  const AttentionCase c = reference::random_case(
      {.batch = 2, .key_heads = 1, .tokens = 20, .width = 3, .counts = {1, 1}});
  for (const int64_t first_query : {4, 19}) expect_softmax_slopes(c, first_query);
  expect_softmax_slopes(reference::random_case({.tokens = 80, .width = 3, .counts = {1}}), 10);
}

TEST(SoftmaxAttentionBackward, APartOfALargerAttention) {
  const AttentionCase c = reference::random_case(
      {.batch = 2, .key_heads = 1, .tokens = 20, .width = 3, .counts = {1, 1}});
  expect_softmax_slopes(c, 4, 4);
  expect_softmax_slopes(c, 12, 7);
}

// Scores of several hundred: weights are 0 or 1, and nothing overflows.
TEST(SoftmaxAttentionBackward, SurvivesExtremeScores) {
  const AttentionCase c = reference::random_case(
      {.tokens = 70, .width = 16, .counts = {1}, .query_scale = 30, .key_scale = 30});
  Random random(2);
  const SoftmaxAttentionGradients found = softmax_attention_backward(
      c.q_tensor(), c.k_tensor(), c.v_tensor(), test::normal_tensor({1, 70, 1, 16}, random));
  for (const Tensor* gradient : {&found.q, &found.k, &found.v})
    for (int64_t i = 0; i < gradient->count(); ++i)
      ASSERT_TRUE(std::isfinite(gradient->data<float>()[i]));
}

TEST(SoftmaxAttentionBackward, RefusesShapesThatDoNotFit) {
  const Tensor q = Tensor::zeros({1, 4, 5, 8}), k = Tensor::zeros({1, 2, 5, 8});
  EXPECT_THROW(softmax_attention_backward(q, k, k, q), std::invalid_argument);
  const Tensor fewer = Tensor::zeros({1, 2, 4, 8}), grad = Tensor::zeros({1, 5, 4, 8});
  EXPECT_THROW(softmax_attention_backward(q, fewer, fewer, grad), std::invalid_argument);
  EXPECT_THROW(softmax_attention_backward(q, q, q, grad, {.out = q, .log_sum = {}}),
               std::invalid_argument);
  EXPECT_THROW(softmax_attention_backward(q, q, q, grad, {.out = {}, .log_sum = q}),
               std::invalid_argument);
}

// Sequences of different lengths in one cache, with anything behind their ends, attend as each
// does alone.
TEST(SoftmaxAttention, SequencesOfDifferentLengths) {
  Random random(12);
  const int64_t batch = 3, heads = 4, key_heads = 2, capacity = 400, width = 8;
  const int64_t past[] = {300, 0, 7};
  Tensor before({batch}, DType::kI64);
  std::copy_n(past, batch, before.data<int64_t>());
  const Tensor k = test::normal_tensor({batch, key_heads, capacity, width}, random);
  const Tensor v = test::normal_tensor({batch, key_heads, capacity, width}, random);
  for (const int64_t tokens : {1, 70}) {
    const Tensor q = test::normal_tensor({batch, heads, tokens, width}, random);
    Tensor spoilt = v.clone();
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t h = 0; h < key_heads; ++h) {
        const int64_t keys = past[b] + tokens;
        std::fill_n(spoilt.data<float>() + ((b * key_heads + h) * capacity + keys) * width,
                    (capacity - keys) * width, NAN);
      }
    const Tensor all = softmax_attention(q, k, spoilt, 300 + tokens, nullptr, before);
    for (int64_t b = 0; b < batch; ++b) {
      const auto alone = [&](const Tensor& x) { return x.slice(b, b + 1); };
      EXPECT_TRUE(test::same_bits(
          alone(all), softmax_attention(alone(q), alone(k), alone(v), past[b] + tokens)))
          << tokens << " tokens, sequence " << b;
    }
    before.data<int64_t>()[2] = 301;
    EXPECT_THROW(softmax_attention(q, k, v, 300 + tokens, nullptr, before), std::invalid_argument);
    before.data<int64_t>()[2] = past[2];
  }
}

}  // namespace
}  // namespace dofla
