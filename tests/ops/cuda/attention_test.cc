// Attention: the GPU against the CPU, in float32 and in bf16.
#include <algorithm>

#include "dofla/ops/linear_attention.h"
#include "dofla/ops/softmax_attention.h"
#include "tests/ops/cuda/attention_on_gpu.h"
#include "tests/support/random_values.h"

namespace dofla {
namespace {

using reference::AttentionCase;
using test::kPrecisions;

class CudaAttention : public test::AttentionOnGpu {
 protected:
  // Tiles that are whole, and that one token more or less leaves almost empty or almost whole;
  // every width that has kernels of its own; and enough heads to fill a GPU without sharing out
  // their keys.
  static std::vector<AttentionCase> cases_in_packs() {
    std::vector<AttentionCase> all;
    for (const int64_t tokens : {1, 63, 64, 65, 127, 129, 1000})
      all.push_back(reference::random_case(
          {.key_heads = 2, .tokens = tokens, .width = 64, .counts = {16, 64, 33, 64}}));
    for (const int64_t width : {32, 80, 96, 128})
      all.push_back(reference::random_case(
          {.batch = 2, .key_heads = 1, .tokens = 129, .width = width, .counts = {64, 20}}));
    for (const int64_t width : {64, 128})
      all.push_back(reference::random_case(
          {.batch = 2, .tokens = 129, .width = width, .counts = {64, 20}, .group = 4}));
    // Few states and a long sequence, which is cut into segments.
    all.push_back(
        reference::random_case({.tokens = 1000, .width = 64, .counts = {64}, .group = 2}));
    for (const int64_t width : {64, 128})
      all.push_back(reference::random_case(
          {.batch = 34, .key_heads = 2, .tokens = 129, .width = width, .counts = {64, 8, 8, 8}}));
    return all;
  }

  static std::vector<AttentionCase> all_cases() {
    std::vector<AttentionCase> all = cases();
    for (AttentionCase& c : cases_in_packs()) all.push_back(std::move(c));
    return all;
  }

  struct SoftmaxSizes {
    int64_t batch, heads, key_heads, tokens, keys, width;
  };
  void expect_softmax(const SoftmaxSizes& s) const;
  void expect_steps(const AttentionCase& c) const;
};

// The last `tokens` of `keys` ask. The backward gives the same bits twice.
void CudaAttention::expect_softmax(const SoftmaxSizes& s) const {
  Random random(3);
  const Shape keys_shape = {s.batch, s.key_heads, s.keys, s.width};
  const Tensor exact_q = test::normal_tensor({s.batch, s.heads, s.tokens, s.width}, random);
  const Tensor exact_k = test::normal_tensor(keys_shape, random);
  const Tensor exact_v = test::normal_tensor(keys_shape, random);
  const Tensor exact_grad = test::normal_tensor({s.batch, s.tokens, s.heads, s.width}, random);
  for (const auto& [dtype, relative] : kPrecisions) {
    const std::string what =
        fmt::format("{} tokens of {}, {} wide, {} × {} heads on {}, {}", s.tokens, s.keys, s.width,
                    s.batch, s.heads, s.key_heads, name(dtype));
    const Tensor q = there(exact_q, dtype), k = there(exact_k, dtype), v = there(exact_v, dtype),
                 grad = there(exact_grad, dtype);
    AttentionTape tape;
    expect_close(softmax_attention(q, k, v, s.keys, &tape),
                 softmax_attention(here(q), here(k), here(v), s.keys), relative, what);
    const auto cpu = softmax_attention_backward(here(q), here(k), here(v), here(grad));
    const auto result = softmax_attention_backward(q, k, v, grad, tape);
    // Sums over keys or queries, with terms of either sign. One key has all the weight, whatever
    // it is: gradients of logits are rounding.
    const double sums = relative * (1 + std::sqrt(static_cast<double>(s.keys)) / 8);
    if (s.keys > 1) expect_close(result.q, cpu.q, sums, what + ", grad_q");
    if (s.keys > 1) expect_close(result.k, cpu.k, sums, what + ", grad_k");
    expect_close(result.v, cpu.v, sums, what + ", grad_v");
    const auto again = softmax_attention_backward(q, k, v, grad, tape);
    EXPECT_TRUE(test::same_bits(here(result.q), here(again.q))) << what;
    EXPECT_TRUE(test::same_bits(here(result.k), here(again.k))) << what;
    EXPECT_TRUE(test::same_bits(here(result.v), here(again.v))) << what;
  }
}

TEST_F(CudaAttention, Softmax) {
  for (const AttentionCase& c : all_cases())
    expect_softmax({c.batch, c.heads, c.key_heads, c.tokens, c.tokens, c.width});
  expect_softmax({2, 4, 2, 130, 130, 64});
  expect_softmax({2, 4, 1, 193, 193, 56});  // narrower than the tiles
  expect_softmax({2, 3, 3, 65, 200, 64});   // with keys before the first query
  expect_softmax({1, 8, 2, 129, 450, 64});
}

// Enough heads that a block passes over all tiles of a long sequence, and over several heads.
TEST_F(CudaAttention, SoftmaxLarge) {
  expect_softmax({2, 24, 12, 1000, 1000, 64});
}

TEST_F(CudaAttention, Linear) {
  for (const AttentionCase& c : all_cases())
    for (const test::Precision& precision : kPrecisions) expect_linear(c, precision);
}

// A backward without the forward's tape computes the same.
TEST_F(CudaAttention, BackwardWithoutATape) {
  const AttentionCase c = reference::random_case(
      {.batch = 2, .key_heads = 1, .tokens = 129, .width = 64, .counts = {64, 20}});
  const Tensor q = there(c.q_tensor(), DType::kBF16), k = there(c.k_tensor(), DType::kBF16),
               v = there(c.v_tensor(), DType::kBF16);
  Random random(3);
  const Tensor grad =
      there(test::normal_tensor({c.batch, c.tokens, c.heads, c.width}, random), DType::kBF16);
  const auto expect_same = [&](const Tensor& x, const Tensor& y, const char* what) {
    EXPECT_TRUE(test::same_bits(here(x), here(y))) << what;
  };
  AttentionTape tape;
  softmax_attention(q, k, v, c.tokens, &tape);
  const auto softmax = softmax_attention_backward(q, k, v, grad, tape);
  const auto softmax_again = softmax_attention_backward(q, k, v, grad);
  expect_same(softmax.q, softmax_again.q, "softmax grad_q");
  expect_same(softmax.k, softmax_again.k, "softmax grad_k");
  const Features features = c.features().to(gpu);
  linear_attention(q, k, v, features, nullptr, kLinearAttentionChunk, &tape);
  const auto linear =
      linear_attention_backward(q, k, v, features, grad, kLinearAttentionChunk, tape);
  const auto linear_again = linear_attention_backward(q, k, v, features, grad);
  expect_same(linear.q, linear_again.q, "linear grad_q");
  expect_same(linear.features.z, linear_again.features.z, "linear grad_z");
}

// One token at a time, each with the state of the one before, is what the whole sequence gives.
void CudaAttention::expect_steps(const AttentionCase& c) const {
  const Features features = c.features(), on_gpu = features.to(gpu);
  const Tensor expected = linear_attention(c.q_tensor(), c.k_tensor(), c.v_tensor(), features);
  LinearAttentionState state = new_linear_attention_state(c.batch, on_gpu);
  const auto token = [&](const Tensor& x, int64_t t) {  // [B, H, 1, D]
    Tensor out({x.size(0), x.size(1), 1, x.size(3)});
    for (int64_t i = 0; i < x.size(0) * x.size(1); ++i)
      std::copy_n(x.data<float>() + (i * x.size(2) + t) * x.size(3), x.size(3),
                  out.data<float>() + i * x.size(3));
    return out.to(gpu);
  };
  for (int64_t t = 0; t < c.tokens; ++t) {
    const Tensor out = here(linear_attention(token(c.q_tensor(), t), token(c.k_tensor(), t),
                                             token(c.v_tensor(), t), on_gpu, &state));
    const int64_t row = c.heads * c.width;
    for (int64_t b = 0; b < c.batch; ++b)
      for (int64_t i = 0; i < row; ++i)
        EXPECT_NEAR(out.data<float>()[b * row + i],
                    expected.data<float>()[(b * c.tokens + t) * row + i],
                    64 * 0x1p-23 * c.largest_value());
  }
}

TEST_F(CudaAttention, LinearStepByStep) {
  expect_steps(reference::random_case(
      {.batch = 2, .key_heads = 1, .tokens = 20, .width = 64, .counts = {33, 64}}));
  for (const int64_t width : {64, 20})  // one state for all query heads of a group
    expect_steps(reference::random_case(
        {.batch = 2, .tokens = 20, .width = width, .counts = {33, 140}, .group = 3}));
}

// Sequences of different lengths in one cache, with anything behind their ends, by every kernel:
// one query, some, and enough for warpgroups.
TEST_F(CudaAttention, SoftmaxOverSequencesOfDifferentLengths) {
  Random random(12);
  const int64_t batch = 3, heads = 4, key_heads = 2, capacity = 500, width = 64;
  Tensor past({batch}, DType::kI64);
  past.data<int64_t>()[0] = 300, past.data<int64_t>()[1] = 0, past.data<int64_t>()[2] = 7;
  const Tensor k = test::normal_tensor({batch, key_heads, capacity, width}, random);
  for (const auto& [dtype, relative] : kPrecisions)
    for (const int64_t tokens : {1, 20, 130}) {
      const Tensor q = test::normal_tensor({batch, heads, tokens, width}, random);
      Tensor v = test::normal_tensor({batch, key_heads, capacity, width}, random);
      for (int64_t b = 0; b < batch; ++b)
        for (int64_t h = 0; h < key_heads; ++h) {
          const int64_t keys = past.data<int64_t>()[b] + tokens;
          std::fill_n(v.data<float>() + ((b * key_heads + h) * capacity + keys) * width,
                      (capacity - keys) * width, NAN);
        }
      const auto rounded = [&](const Tensor& x) { return x.to(dtype).to(DType::kF32); };
      const Tensor found = softmax_attention(there(q, dtype), there(k, dtype), there(v, dtype), 450,
                                             nullptr, past.to(gpu));
      expect_close(found, softmax_attention(rounded(q), rounded(k), rounded(v), 450, nullptr, past),
                   relative, fmt::format("{} queries in {}", tokens, name(dtype)));
    }
}

}  // namespace
}  // namespace dofla
