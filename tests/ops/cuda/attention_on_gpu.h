// What the tests of attention and of its losses share: problems, and how close the GPU must come.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "dofla/ops/linear_attention.h"
#include "tests/reference/attention_case.h"
#include "tests/reference/linear_attention.h"
#include "tests/reference/slopes.h"
#include "tests/support/gpu.h"
#include "tests/support/random_values.h"
#include "tests/support/tolerance.h"

namespace dofla::test {

using reference::AttentionCase;

// What a result of sums over up to T bounded factors may be off by: the GPU keeps float32 inputs at
// float32, and rounds probabilities, factors and results of bf16 inputs to bf16.
struct Precision {
  DType dtype;
  double relative;
};
inline const Precision kPrecisions[] = {{DType::kF32, 64 * 0x1p-23}, {DType::kBF16, 4 * 0x1p-8}};

class AttentionOnGpu : public OnGpu {
 protected:
  // With queries, keys and values that the type has, so that everybody gets the same numbers.
  static AttentionCase rounded(AttentionCase c, DType dtype) {
    c.q = reference::to_doubles(c.q_tensor().to(dtype));
    c.k = reference::to_doubles(c.k_tensor().to(dtype));
    c.v = reference::to_doubles(c.v_tensor().to(dtype));
    return c;
  }
  struct Inputs {
    Tensor q, k, v;
  };
  static Inputs rounded_inputs(const AttentionCase& c, DType dtype) {
    const AttentionCase x = rounded(c, dtype);
    return {x.q_tensor(), x.k_tensor(), x.v_tensor()};
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
    // Untied: a state for three query heads, and for one.
    all.push_back(reference::random_case(
        {.batch = 3, .tokens = 70, .width = 64, .counts = {16, 140}, .group = 3}));
    all.push_back(
        reference::random_case({.tokens = 300, .width = 20, .counts = {5, 64}, .group = 2}));
    all.push_back(reference::random_case({.tokens = 65, .width = 64, .counts = {33}, .group = 1}));
    return all;
  }

  static std::string name_of(const AttentionCase& c, DType dtype) {
    return fmt::format("{} tokens of {} in blocks of {}, {} × {} heads, {}", c.tokens, c.width,
                       c.block, c.batch, c.heads, name(dtype));
  }

  // Of the type's numbers, in float32.
  static Tensor random_gradient(const AttentionCase& c, DType dtype) {
    Random random(3);
    return normal_tensor({c.batch, c.tokens, c.heads, c.width}, random).to(dtype).to(DType::kF32);
  }

  // Linear attention with a state and without one, and its gradients from the tape, as on the CPU.
  void expect_linear(const AttentionCase& c, const Precision& precision) const;
  void expect_linear_gradients(const AttentionCase& c, const Precision& precision,
                               const LinearAttentionGradients& found,
                               const LinearAttentionGradients& wanted, const Tensor& grad) const;
};

// How far a gradient of η moves when every kernel value moves by one part of itself.
inline double most_sensitive_norm_weight(const AttentionCase& c, const Tensor& grad) {
  const auto reference = reference::linear_attention_backward(c, reference::to_doubles(grad));
  return *std::ranges::max_element(reference.features.norm_weight.sensitivity);
}

inline void AttentionOnGpu::expect_linear_gradients(const AttentionCase& c,
                                                    const Precision& precision,
                                                    const LinearAttentionGradients& found,
                                                    const LinearAttentionGradients& wanted,
                                                    const Tensor& grad) const {
  const std::string what = name_of(c, precision.dtype);
  const double sums = precision.relative * (1 + std::sqrt(static_cast<double>(c.tokens)) / 4);
  expect_close(found.v, wanted.v, sums, what + ", grad_v");
  if (c.tokens == 1) return;  // the output is v itself: the other gradients are rounding
  expect_close(found.q, wanted.q, sums, what + ", grad_q");
  expect_close(found.k, wanted.k, sums, what + ", grad_k");
  const auto found_parts = feature_parts(found.features);
  const auto wanted_parts = feature_parts(wanted.features);
  for (size_t i = 0; i < found_parts.size(); ++i) {
    const auto& [part, tensor] = found_parts[i];
    const Tensor& expected = *wanted_parts[i].second;
    ASSERT_EQ(tensor->defined(), expected.defined());
    const std::string which = what + ", gradient of " + std::string(part);
    if (!tensor->defined()) continue;
    // η has one gradient for all features and keys of a head, which largely cancel: it is good
    // to what the kernel values that it comes from are good to, and no better.
    if (part == "norm_weight")
      expect_near(here(*tensor), expected, precision.relative * most_sensitive_norm_weight(c, grad),
                  which);
    else
      expect_close(*tensor, expected, sums, which);
  }
}

inline void AttentionOnGpu::expect_linear(const AttentionCase& c,
                                          const Precision& precision) const {
  const auto& [dtype, relative] = precision;
  const Inputs x = rounded_inputs(c, dtype);
  const Features features = c.features(), on_gpu = features.to(gpu);
  const std::string what = name_of(c, dtype);
  const Tensor q = there(x.q, dtype), k = there(x.k, dtype), v = there(x.v, dtype);
  LinearAttentionState state = new_linear_attention_state(c.batch, features);
  LinearAttentionState gpu_state = new_linear_attention_state(c.batch, on_gpu);
  const int64_t chunk = kLinearAttentionChunk;
  AttentionTape wanted;
  linear_attention(x.q, x.k, x.v, features, &state, chunk, &wanted, c.block);
  expect_close(linear_attention(q, k, v, on_gpu, &gpu_state, chunk, nullptr, c.block), wanted.out,
               relative, what);
  expect_close(gpu_state.b, state.b, 2 * relative, what + ", state");
  AttentionTape tape;
  linear_attention(q, k, v, on_gpu, nullptr, chunk, &tape, c.block);
  const double most = reference::largest(reference::to_doubles(wanted.log_sum));
  expect_near(here(tape.log_sum), wanted.log_sum, relative * std::max(most, 1.0),
              what + ", log sums");
  const Tensor grad = random_gradient(c, dtype);
  expect_linear_gradients(
      c, precision,
      linear_attention_backward(q, k, v, on_gpu, there(grad, dtype), chunk, tape, {}, c.block),
      linear_attention_backward(x.q, x.k, x.v, features, grad, chunk, {}, {}, c.block), grad);
}

}  // namespace dofla::test
