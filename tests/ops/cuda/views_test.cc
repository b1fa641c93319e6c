// Operations on heads that lie in the rows of a projection, between columns of others, against the
// same on heads that have a tensor of their own: the same bits.
#include <cmath>

#include "dofla/ops/feature_loss.h"
#include "dofla/ops/heads.h"
#include "dofla/ops/linear_attention.h"
#include "dofla/ops/softmax_attention.h"
#include "tests/support/gpu.h"
#include "tests/support/random_values.h"

namespace dofla {
namespace {

constexpr int64_t kBatch = 2, kHeads = 4, kKeyHeads = 2;

// For each key head a row has a query, the key, a query and the value; its first columns are left
// out.
struct Rows {
  Tensor all;
  Tensor q, k, v;  // views
};

class CudaViews : public test::OnGpu {
 protected:
  Rows in_rows(int64_t tokens, int64_t width, DType dtype, int64_t left_out = 8) {
    const Shape shape = {kBatch * tokens, left_out + (kHeads + 2 * kKeyHeads) * width};
    return with_views(test::normal_tensor(shape, random).to(dtype).to(gpu), width, left_out);
  }
  static Rows with_views(const Tensor& all, int64_t width, int64_t left_out) {
    return {all, view_heads(all, {left_out, 2 * width}, kBatch, kHeads, width),
            view_heads(all, {left_out + width, 4 * width}, kBatch, kKeyHeads, width),
            view_heads(all, {left_out + 3 * width, 4 * width}, kBatch, kKeyHeads, width)};
  }
  Features some_features(int64_t width) {
    Features features;
    features.counts = {16, 64, 33, 140};
    features.z = test::normal_tensor({features.total(), width}, random);
    features.log_alpha = test::normal_tensor({features.total()}, random);
    return features.to(gpu);
  }
  static void expect_same(const Tensor& found, const Tensor& expected, const std::string& what) {
    EXPECT_TRUE(test::same_bits(here(contiguous_heads(found)), here(expected))) << what;
  }

  Random random{11};
};

TEST_F(CudaViews, Attention) {
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const int64_t tokens : {1, 65, 300}) {
      const int64_t width = 64;
      const Rows x = in_rows(tokens, width, dtype);
      const Tensor q = contiguous_heads(x.q), k = contiguous_heads(x.k), v = contiguous_heads(x.v);
      const Features features = some_features(width);
      const Tensor grad =
          test::normal_tensor({kBatch, tokens, kHeads, width}, random).to(dtype).to(gpu);
      const std::string what = fmt::format("{} tokens in {}", tokens, name(dtype));

      AttentionTape tape, dense_tape;
      expect_same(softmax_attention(x.q, x.k, x.v, tokens, &tape),
                  softmax_attention(q, k, v, tokens, &dense_tape), what);
      const Rows to = with_views(x.all.clone(), width, 8);
      const auto softmax =
          softmax_attention_backward(x.q, x.k, x.v, grad, tape, {to.q, to.k, to.v});
      const auto dense = softmax_attention_backward(q, k, v, grad, dense_tape);
      EXPECT_TRUE(softmax.q.is_view()) << what;
      expect_same(to.q, dense.q, what + ", softmax grad_q");
      expect_same(to.k, dense.k, what + ", softmax grad_k");
      expect_same(to.v, dense.v, what + ", softmax grad_v");

      expect_same(linear_attention(x.q, x.k, x.v, features, nullptr, 64, &tape),
                  linear_attention(q, k, v, features, nullptr, 64, &dense_tape), what);
      const auto linear =
          linear_attention_backward(x.q, x.k, x.v, features, grad, 64, tape, {{}, to.k, to.v});
      const auto linear_dense = linear_attention_backward(q, k, v, features, grad, 64, dense_tape);
      EXPECT_FALSE(linear.q.is_view()) << what;
      expect_same(linear.q, linear_dense.q, what + ", linear grad_q");
      expect_same(to.k, linear_dense.k, what + ", linear grad_k");
      expect_same(to.v, linear_dense.v, what + ", linear grad_v");
      expect_same(linear.features.z, linear_dense.features.z, what + ", grad_z");
    }
}

// What is left out before the heads puts bf16 rows at multiples of 16 bytes, or not.
TEST_F(CudaViews, FeatureLossesLarge) {
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const int64_t width : {20, 64, 128})
      for (const int64_t left_out : {0, 3, 8}) {
        const Rows x = in_rows(130, width, dtype, left_out);
        const Features features = some_features(width);
        for (const auto kind :
             {FeatureLossKind::kSoftmax, FeatureLossKind::kL2, FeatureLossKind::kAttentionMse}) {
          const FeatureLoss found = feature_loss(x.q, x.k, features, {kind});
          const FeatureLoss expected =
              feature_loss(contiguous_heads(x.q), contiguous_heads(x.k), features, {kind});
          const std::string what =
              fmt::format("{} wide after {}, {}, loss {}", width, left_out, name(dtype), int(kind));
          EXPECT_EQ(found.total(), expected.total()) << what;
          EXPECT_TRUE(std::isfinite(found.total())) << what;
          expect_same(found.grad.z, expected.grad.z, what);
          expect_same(found.grad.log_alpha, expected.grad.log_alpha, what);
        }
      }
}

// Columns of other heads stay as they are.
TEST_F(CudaViews, RotateInPlace) {
  Tensor frequencies({3}), first({kBatch}, DType::kI64);
  for (int64_t i = 0; i < 3; ++i)
    frequencies.data<float>()[i] = std::pow(0.1f, static_cast<float>(i));
  for (int64_t b = 0; b < kBatch; ++b) first.data<int64_t>()[b] = 11 + 5 * b;
  frequencies = frequencies.to(gpu), first = first.to(gpu);
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const int64_t width : {7, 64}) {
      Rows x = in_rows(70, width, dtype);
      Tensor q = contiguous_heads(x.q), expected = x.all.clone();
      rotate(q, frequencies, first);
      Tensor to = view_heads(expected, {8, 2 * width}, kBatch, kHeads, width);
      copy_heads(q, to);
      rotate(x.q, frequencies, first);
      expect_same(x.all, expected, fmt::format("{} in {}", width, name(dtype)));
    }
}

}  // namespace
}  // namespace dofla
