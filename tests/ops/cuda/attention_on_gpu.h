// What the tests of attention and of its losses share: problems, and how close the GPU must come.
#pragma once

#include <string>
#include <vector>

#include "tests/reference/attention_case.h"
#include "tests/support/gpu.h"

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
    return fmt::format("{} tokens of {}, {} × {} heads, {}", c.tokens, c.width, c.batch, c.heads,
                       name(dtype));
  }
};

}  // namespace dofla::test
