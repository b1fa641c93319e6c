#include "dofla/ops/gradient_buffers.h"

#include <gtest/gtest.h>

#include "dofla/ops/heads.h"
#include "dofla/ops/linear_attention.h"
#include "dofla/ops/softmax_attention.h"
#include "tests/reference/attention_case.h"
#include "tests/support/random_values.h"

namespace dofla {
namespace {

// Queries and values leave their gradients in the rows they came from; keys have no buffers there.
TEST(GradientBuffers, TakesTheGradientsOfBothAttentions) {
  const reference::AttentionCase c = reference::random_case(
      {.batch = 2, .key_heads = 1, .tokens = 65, .width = 8, .counts = {5, 9}});
  const Tensor q = c.q_tensor(), k = c.k_tensor(), v = c.v_tensor();
  Random random(1);
  const Tensor grad = test::normal_tensor({2, 65, 2, 8}, random);
  Tensor rows = Tensor::zeros({2 * 65, 24});
  const GradientBuffers buffers = {view_heads(rows, {0, 16}, 2, 2, 8), Tensor(),
                                   view_heads(rows, {8, 0}, 2, 1, 8)};
  const auto expect_same = [&](const auto& found, const auto& expected) {
    EXPECT_TRUE(test::same_bits(contiguous_heads(view_heads(rows, {0, 16}, 2, 2, 8)), expected.q));
    EXPECT_TRUE(test::same_bits(found.k, expected.k));
    EXPECT_TRUE(test::same_bits(contiguous_heads(view_heads(rows, {8, 0}, 2, 1, 8)), expected.v));
    EXPECT_TRUE(found.q.is_view() && found.v.is_view());
  };
  expect_same(softmax_attention_backward(q, k, v, grad, {}, buffers),
              softmax_attention_backward(q, k, v, grad));
  const Features features = c.features();
  expect_same(linear_attention_backward(q, k, v, features, grad, 16, {}, buffers),
              linear_attention_backward(q, k, v, features, grad, 16));
}

TEST(GradientBuffers, RefusesWhatDoesNotFit) {
  const Tensor q = Tensor::zeros({1, 2, 3, 4}), k = Tensor::zeros({1, 1, 3, 4});
  const Tensor grad = Tensor::zeros({1, 3, 2, 4});
  EXPECT_THROW(softmax_attention_backward(q, k, k, grad, {}, {k, k, k}), std::invalid_argument);
  EXPECT_THROW(allocate_missing({q, q, {}}, q, k), std::invalid_argument);
  EXPECT_THROW(allocate_missing({q.to(DType::kF64), {}, {}}, q, k), std::invalid_argument);
  EXPECT_EQ(allocate_missing({q, {}, {}}, q, k).v.shape(), k.shape());
}

}  // namespace
}  // namespace dofla
