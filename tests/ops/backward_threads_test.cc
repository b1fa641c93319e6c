// Gradients do not depend on the number of threads, not by a bit: a run can be repeated and resumed
// on another machine.
#include <gtest/gtest.h>

#include "dofla/ops/cross_entropy.h"
#include "dofla/ops/embedding.h"
#include "dofla/ops/linear_attention.h"
#include "dofla/ops/matmul.h"
#include "dofla/ops/norm.h"
#include "dofla/ops/softmax_attention.h"
#include "tests/support/random_values.h"

namespace dofla {
namespace {

using Results = std::vector<Tensor>;

void expect_same(const std::function<Results()>& compute, const char* what) {
  const Results one = test::with_threads(1, compute), five = test::with_threads(5, compute);
  ASSERT_EQ(one.size(), five.size());
  for (size_t i = 0; i < one.size(); ++i)
    EXPECT_TRUE(test::same_bits(one[i], five[i])) << what << ": result " << i;
}

TEST(BackwardThreads, Norms) {
  Random random(1);
  const Tensor x = test::normal_tensor({300, 24}, random),
               g = test::normal_tensor({300, 24}, random);
  const Tensor weight = test::normal_tensor({24}, random);
  expect_same(
      [&]() -> Results {
        Tensor grad_weight = Tensor::zeros({24}), grad_bias = Tensor::zeros({24});
        const Tensor grad_x = layer_norm_backward(x, weight, 1e-5, g, &grad_weight, &grad_bias);
        return {grad_x, grad_weight, grad_bias};
      },
      "layer_norm_backward");
}

// Long sums must not be cut up between the cores, also where a product is one task alone.
TEST(BackwardThreads, Products) {
  Random random(2);
  for (const int64_t width : {32, 200, 4000})
    for (const int64_t rows : {3, 100, 600}) {
      const int64_t outputs = 51;
      const Tensor x = test::normal_tensor({rows, width}, random);
      const Tensor g = test::normal_tensor({rows, outputs}, random);
      const Linear linear = {.weight = test::normal_tensor({width, outputs}, random),
                             .input_major = true,
                             .bias = test::normal_tensor({outputs}, random)};
      expect_same(
          [&]() -> Results {
            Linear gradient = {.weight = Tensor::zeros(linear.weight.shape()),
                               .input_major = true,
                               .bias = Tensor::zeros({outputs})};
            add_weight_gradient(x, g, gradient);
            return {matmul(x, linear), matmul_backward(g, linear), gradient.weight, gradient.bias};
          },
          "matmul_backward");
    }
}

TEST(BackwardThreads, CrossEntropyAndEmbedding) {
  Random random(3);
  const Tensor x = test::normal_tensor({200, 24}, random),
               factor = test::normal_tensor({200}, random);
  const Linear head = {test::normal_tensor({500, 24}, random), false, {}};
  Tensor ids({200}, DType::kI64);
  for (int64_t i = 0; i < 200; ++i) ids.data<int64_t>()[i] = i * 7 % 500;
  expect_same(
      [&]() -> Results {
        Linear gradient = {Tensor::zeros({500, 24}), false, {}};
        const CrossEntropyGradients found = cross_entropy_backward(x, head, ids, factor, &gradient);
        Tensor table = Tensor::zeros({500, 24});
        embed_backward(ids, x, table);
        return {found.loss, found.x, gradient.weight, table};
      },
      "cross_entropy_backward");
}

TEST(BackwardThreads, Attention) {
  Random random(4);
  for (const int64_t heads : {1, 4}) {
    const Tensor q = test::normal_tensor({1, heads, 130, 8}, random);
    const Tensor k = test::normal_tensor({1, 1, 130, 8}, random);
    const Tensor v = test::normal_tensor({1, 1, 130, 8}, random);
    const Tensor g = test::normal_tensor({1, 130, heads, 8}, random);
    const Features features = {.counts = std::vector<int64_t>(static_cast<size_t>(heads), 5),
                               .z = test::normal_tensor({5 * heads, 8}, random),
                               .log_alpha = test::normal_tensor({5 * heads}, random)};
    expect_same(
        [&]() -> Results {
          const SoftmaxAttentionGradients softmax = softmax_attention_backward(q, k, v, g);
          const LinearAttentionGradients linear = linear_attention_backward(q, k, v, features, g);
          return {softmax.q, softmax.k, softmax.v, linear.q, linear.k, linear.v, linear.features.z};
        },
        "attention");
  }
}

}  // namespace
}  // namespace dofla
