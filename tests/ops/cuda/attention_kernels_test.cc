// Attention kernels on heads that lie in the rows of a projection, [B·T, (H + 2 Hkv)·D], and whose
// gradients go back there: the same bits as with a tensor for each.
#include <gtest/gtest.h>

#include "dofla/ops/cuda/head_tensors.h"
#include "dofla/ops/cuda/linear_attention_kernels.h"
#include "dofla/ops/cuda/softmax_attention_kernels.h"
#include "dofla/ops/heads.h"
#include "tests/support/gpu.h"
#include "tests/support/random_values.h"

namespace dofla {
namespace {

using cuda::HeadRows;
using cuda::HeadRowsOut;

constexpr int64_t kBatch = 2, kHeads = 4, kKeyHeads = 2, kTokens = 130, kWidth = 64;
constexpr int64_t kColumns = (kHeads + 2 * kKeyHeads) * kWidth;
constexpr int64_t kFeatures = 64;

class CudaAttentionKernels : public test::OnGpu {
 protected:
  void SetUp() override {
    test::OnGpu::SetUp();
    if (IsSkipped()) return;
    Random random(7);
    rows = test::normal_tensor({kBatch * kTokens, kColumns}, random).to(DType::kBF16).to(gpu);
    grad_out =
        test::normal_tensor({kBatch, kTokens, kHeads, kWidth}, random).to(DType::kBF16).to(gpu);
    for (const int which : {0, 1, 2}) {
      const int64_t heads = which == 0 ? kHeads : kKeyHeads;
      dense[which] = contiguous_heads(
          view_heads(rows, {first(which) * kWidth, kWidth}, kBatch, heads, kWidth));
    }
  }

  // The first head of q, k or v among those of a row.
  static int64_t first(int which) { return which == 0 ? 0 : kHeads + (which - 1) * kKeyHeads; }
  static HeadRows in_rows(const Tensor& all, int which) {
    const auto* data = static_cast<const std::byte*>(all.raw()) + first(which) * kWidth * 2;
    return {data, kTokens * kColumns, kWidth, kColumns};
  }
  static HeadRowsOut in_rows(Tensor& all, int which) {
    auto* data = static_cast<std::byte*>(all.mutable_raw()) + first(which) * kWidth * 2;
    return {data, kTokens * kColumns, kWidth, kColumns};
  }
  Tensor room(Shape shape, DType dtype = DType::kBF16) const {
    return Tensor(std::move(shape), dtype, gpu);
  }
  static void expect_same(const Tensor& x, const Tensor& y, const char* what) {
    EXPECT_TRUE(test::same_bits(here(x), here(y))) << what;
  }

  struct Results {
    Tensor out, log_sum, q, k, v, z, log_alpha;
  };

  // forward(q, k, v, results) and backward(q, k, v, gradients of each, results), both ways.
  template <class Forward, class Backward>
  void compare(const Forward& forward, const Backward& backward) {
    const auto fresh = [&] {
      return Results{room({kBatch, kTokens, kHeads, kWidth}),
                     room({kBatch, kHeads, kTokens}, DType::kF32),
                     room(dense[0].shape()),
                     room(dense[1].shape()),
                     room(dense[2].shape()),
                     room({kHeads * kFeatures, kWidth}, DType::kF32),
                     room({kHeads * kFeatures}, DType::kF32)};
    };
    Results expected = fresh(), found = fresh();
    const HeadRows q = cuda::heads_of(std::as_const(dense[0])),
                   k = cuda::heads_of(std::as_const(dense[1])),
                   v = cuda::heads_of(std::as_const(dense[2]));
    forward(q, k, v, expected);
    backward(q, k, v, cuda::heads_of(expected.q), cuda::heads_of(expected.k),
             cuda::heads_of(expected.v), expected);
    Tensor gradients = room(rows.shape());
    forward(in_rows(std::as_const(rows), 0), in_rows(std::as_const(rows), 1),
            in_rows(std::as_const(rows), 2), found);
    backward(in_rows(std::as_const(rows), 0), in_rows(std::as_const(rows), 1),
             in_rows(std::as_const(rows), 2), in_rows(gradients, 0), in_rows(gradients, 1),
             in_rows(gradients, 2), found);
    expect_same(found.out, expected.out, "out");
    expect_same(found.log_sum, expected.log_sum, "log sums");
    const Tensor* const each[] = {&expected.q, &expected.k, &expected.v};
    for (const int which : {0, 1, 2}) {
      const int64_t heads = which == 0 ? kHeads : kKeyHeads;
      expect_same(contiguous_heads(view_heads(gradients, {first(which) * kWidth, kWidth}, kBatch,
                                              heads, kWidth)),
                  *each[which], "gradient");
    }
  }

  Tensor rows, grad_out, dense[3];
};

TEST_F(CudaAttentionKernels, SoftmaxInRows) {
  const cuda::SoftmaxAttentionShape shape = {
      cuda::Element::kBF16, kBatch, kHeads, kKeyHeads, kTokens, kTokens, kWidth};
  const cudaStream_t stream = cuda::stream_of(rows);
  compare(
      [&](HeadRows q, HeadRows k, HeadRows v, Results& r) {
        Tensor workspace = room({cuda::softmax_attention_workspace_bytes(shape)}, DType::kU8);
        ASSERT_EQ(cudaSuccess, cuda::launch_softmax_attention(shape, q, k, v, nullptr,
                                                              cuda::token_heads_of(r.out),
                                                              cuda::mutable_floats(r.log_sum),
                                                              workspace.mutable_raw(), stream));
      },
      [&](HeadRows q, HeadRows k, HeadRows v, HeadRowsOut to_q, HeadRowsOut to_k, HeadRowsOut to_v,
          Results& r) {
        Tensor workspace =
            room({cuda::softmax_attention_backward_workspace_bytes(shape)}, DType::kU8);
        ASSERT_EQ(cudaSuccess,
                  cuda::launch_softmax_attention_backward(
                      shape, q, k, v, cuda::token_heads_of(std::as_const(r.out)),
                      cuda::floats(r.log_sum), cuda::token_heads_of(std::as_const(grad_out)),
                      {to_q, to_k, to_v}, workspace.mutable_raw(), stream));
      });
}

TEST_F(CudaAttentionKernels, LinearInRows) {
  const cuda::LinearAttentionShape shape = {
      cuda::Element::kBF16, kBatch, kHeads, kKeyHeads, kTokens, kWidth};
  Random random(8);
  const Tensor z = test::normal_tensor({kHeads * kFeatures, kWidth}, random).to(gpu);
  const Tensor log_alpha = Tensor::zeros({kHeads * kFeatures}, DType::kF32, gpu);
  const std::vector<int64_t> counts(kHeads, kFeatures);
  const cuda::LinearAttentionFeatures features = {counts.data(), cuda::floats(z),
                                                  cuda::floats(log_alpha), true};
  const cudaStream_t stream = cuda::stream_of(rows);
  compare(
      [&](HeadRows q, HeadRows k, HeadRows v, Results& r) {
        Tensor workspace =
            room({cuda::linear_attention_workspace_bytes(shape, features)}, DType::kU8);
        ASSERT_EQ(cudaSuccess, cuda::launch_linear_attention(shape, features, q, k, v, {},
                                                             cuda::token_heads_of(r.out),
                                                             cuda::mutable_floats(r.log_sum),
                                                             workspace.mutable_raw(), stream));
      },
      [&](HeadRows q, HeadRows k, HeadRows v, HeadRowsOut to_q, HeadRowsOut to_k, HeadRowsOut to_v,
          Results& r) {
        Tensor workspace =
            room({cuda::linear_attention_backward_workspace_bytes(shape, features)}, DType::kU8);
        ASSERT_EQ(
            cudaSuccess,
            cuda::launch_linear_attention_backward(
                shape, features, q, k, v, cuda::token_heads_of(std::as_const(r.out)),
                cuda::floats(r.log_sum), cuda::token_heads_of(std::as_const(grad_out)),
                {to_q, to_k, to_v, cuda::mutable_floats(r.z), cuda::mutable_floats(r.log_alpha)},
                workspace.mutable_raw(), stream));
      });
}

}  // namespace
}  // namespace dofla
