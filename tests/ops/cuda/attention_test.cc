// Attention, features and their losses: the GPU against the CPU, in float32 and in bf16.
#include <limits>

#include "dofla/ops/feature_loss.h"
#include "dofla/ops/feature_step.h"
#include "dofla/ops/linear_attention.h"
#include "dofla/ops/softmax_attention.h"
#include "tests/reference/attention_case.h"
#include "tests/support/fixtures.h"
#include "tests/support/gpu.h"
#include "tests/support/random_values.h"

namespace dofla {
namespace {

using reference::AttentionCase;

// What a result of sums over up to T bounded factors may be off by: the GPU keeps float32 inputs at
// float32, and rounds probabilities, factors and results of bf16 inputs to bf16.
struct Precision {
  DType dtype;
  double relative;
};
const Precision kPrecisions[] = {{DType::kF32, 64 * 0x1p-23}, {DType::kBF16, 4 * 0x1p-8}};

class CudaAttention : public test::OnGpu {
 protected:
  struct Inputs {
    Tensor q, k, v;
  };
  // Rounded to the type first, so that both devices get the same numbers.
  static Inputs rounded(const AttentionCase& c, DType dtype) {
    const auto round = [&](const Tensor& x) { return x.to(dtype).to(DType::kF32); };
    return {round(c.q_tensor()), round(c.k_tensor()), round(c.v_tensor())};
  }
  Tensor there(const Tensor& x, DType dtype) const { return x.to(dtype).to(gpu); }

  // Rows of 20 elements do not come in packs of 16 bytes.
  static std::vector<AttentionCase> cases() {
    std::vector<AttentionCase> all;
    for (const int64_t tokens : {1, 63, 64, 65, 1000})
      all.push_back(reference::random_case(
          {.batch = 1, .key_heads = 1, .tokens = tokens, .width = 20, .counts = {5, 17}}));
    all.push_back(reference::random_case(
        {.batch = 3, .key_heads = 2, .tokens = 70, .width = 64, .counts = {1, 16, 140, 64}}));
    return all;
  }

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
          {.batch = 34, .key_heads = 2, .tokens = 129, .width = width, .counts = {64, 8, 8, 8}}));
    return all;
  }

  static std::vector<AttentionCase> all_cases() {
    std::vector<AttentionCase> all = cases();
    for (AttentionCase& c : cases_in_packs()) all.push_back(std::move(c));
    return all;
  }

  static std::string name_of(const AttentionCase& c, DType dtype) {
    return fmt::format("{} tokens of {}, {} × {} heads, {}", c.tokens, c.width, c.batch, c.heads,
                       name(dtype));
  }
};

TEST_F(CudaAttention, Softmax) {
  for (const AttentionCase& c : all_cases())
    for (const auto& [dtype, relative] : kPrecisions) {
      const Inputs x = rounded(c, dtype);
      const std::string what = name_of(c, dtype);
      const Tensor q = there(x.q, dtype), k = there(x.k, dtype), v = there(x.v, dtype);
      AttentionTape tape;
      expect_close(softmax_attention(q, k, v, c.tokens, &tape),
                   softmax_attention(x.q, x.k, x.v, c.tokens), relative, what);
      Random random(3);
      const Tensor grad = test::normal_tensor({c.batch, c.tokens, c.heads, c.width}, random)
                              .to(dtype)
                              .to(DType::kF32);
      const auto cpu = softmax_attention_backward(x.q, x.k, x.v, grad);
      const auto result = softmax_attention_backward(q, k, v, there(grad, dtype), tape);
      // Sums over keys or queries, with terms of either sign.
      const double sums = relative * (1 + std::sqrt(static_cast<double>(c.tokens)) / 8);
      if (c.tokens > 1) expect_close(result.q, cpu.q, sums, what + ", grad_q");
      if (c.tokens > 1) expect_close(result.k, cpu.k, sums, what + ", grad_k");
      expect_close(result.v, cpu.v, sums, what + ", grad_v");
    }
}

TEST_F(CudaAttention, Linear) {
  for (const AttentionCase& c : all_cases())
    for (const auto& [dtype, relative] : kPrecisions) {
      const Inputs x = rounded(c, dtype);
      const Features features = c.features(), on_gpu = features.to(gpu);
      const std::string what = name_of(c, dtype);
      const Tensor q = there(x.q, dtype), k = there(x.k, dtype), v = there(x.v, dtype);
      LinearAttentionState state = new_linear_attention_state(c.batch, features);
      LinearAttentionState gpu_state = new_linear_attention_state(c.batch, on_gpu);
      expect_close(linear_attention(q, k, v, on_gpu, &gpu_state),
                   linear_attention(x.q, x.k, x.v, features, &state), relative, what);
      expect_close(gpu_state.b, state.b, 2 * relative, what + ", state");
      AttentionTape tape;
      linear_attention(q, k, v, on_gpu, nullptr, kLinearAttentionChunk, &tape);
      Random random(3);
      const Tensor grad = test::normal_tensor({c.batch, c.tokens, c.heads, c.width}, random)
                              .to(dtype)
                              .to(DType::kF32);
      const auto cpu = linear_attention_backward(x.q, x.k, x.v, features, grad);
      const auto result = linear_attention_backward(q, k, v, on_gpu, there(grad, dtype),
                                                    kLinearAttentionChunk, tape);
      const double sums = relative * (1 + std::sqrt(static_cast<double>(c.tokens)) / 4);
      expect_close(result.v, cpu.v, sums, what + ", grad_v");
      if (c.tokens == 1) continue;  // the output is v itself: the other gradients are rounding
      expect_close(result.q, cpu.q, sums, what + ", grad_q");
      expect_close(result.k, cpu.k, sums, what + ", grad_k");
      expect_close(result.z, cpu.z, sums, what + ", grad_z");
      expect_close(result.log_alpha, cpu.log_alpha, sums, what + ", grad_log_alpha");
    }
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
  expect_same(linear.z, linear_again.z, "linear grad_z");
}

// One token at a time, each with the state of the one before, is what the whole sequence gives.
TEST_F(CudaAttention, LinearStepByStep) {
  const AttentionCase c = reference::random_case(
      {.batch = 2, .key_heads = 1, .tokens = 20, .width = 64, .counts = {33, 64}});
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

TEST_F(CudaAttention, FeatureLosses) {
  std::vector<AttentionCase> all = cases();
  all.push_back(reference::fixture_case(test::fixtures() / "features_extreme.safetensors"));
  for (const AttentionCase& c : all)
    for (const auto& [dtype, bf16] : kPrecisions) {
      const Inputs x = rounded(c, dtype);
      const Features features = c.features();
      for (const auto kind :
           {FeatureLossKind::kSoftmax, FeatureLossKind::kL2, FeatureLossKind::kAttentionMse})
        for (const auto mask : {PairMask::kCausal, PairMask::kFull}) {
          const std::string what = fmt::format("{} tokens, {}, loss {} mask {}", c.tokens,
                                               name(dtype), int(kind), int(mask));
          const FeatureLoss cpu = feature_loss(x.q, x.k, features, {kind, mask});
          const auto run = [&] {
            return feature_loss(there(x.q, dtype), there(x.k, dtype), features.to(gpu),
                                {kind, mask});
          };
          const FeatureLoss result = run(), again = run();
          EXPECT_TRUE(test::same_bits(here(result.grad_z), here(again.grad_z))) << what;
          if (c.tokens == 1) continue;  // one pair: the normalised losses are constant
          // K̂ is made of two bf16 parts a factor, 2^-16 of each term. So are gradients of float32
          // inputs, which cancel: eight times that was allowed after four times was seen, for
          // attention-mse. Those of bf16 inputs are products of bf16 numbers, as everything else
          // is.
          constexpr double kTwoParts = 4 * 0x1p-16, kCancelling = 8 * kTwoParts;
          const double relative = dtype == DType::kF32 ? kCancelling : bf16;
          EXPECT_NEAR(result.total(), cpu.total(), kTwoParts * std::abs(cpu.total())) << what;
          expect_close(result.grad_z, cpu.grad_z, relative, what + ", grad_z");
          expect_close(result.grad_log_alpha, cpu.grad_log_alpha, relative,
                       what + ", grad_log_alpha");
        }
    }
}

TEST_F(CudaAttention, FeatureStep) {
  const AttentionCase c = reference::random_case({.tokens = 40, .width = 16, .counts = {9, 24}});
  Features cpu = c.features(), there_features = c.features().to(gpu);
  FeatureMoments moments = new_feature_moments(cpu);
  FeatureMoments gpu_moments = new_feature_moments(there_features);
  const FeatureLoss loss = feature_loss(c.q_tensor(), c.k_tensor(), cpu);
  for (int step = 0; step < 3; ++step) {
    feature_step(loss.per_head, loss.grad_z, loss.grad_log_alpha, {0.1, 0.2}, moments, cpu);
    feature_step(loss.per_head.to(gpu), loss.grad_z.to(gpu), loss.grad_log_alpha.to(gpu),
                 {0.1, 0.2}, gpu_moments, there_features);
  }
  expect_close(there_features.z, cpu.z, 8 * 0x1p-23, "z");
  expect_close(there_features.log_alpha, cpu.log_alpha, 8 * 0x1p-23, "log alpha");
}

}  // namespace
}  // namespace dofla
