// What the tests of token programs share: rows that enter a program from a table and leave it.
#pragma once

#include "tests/ops/cuda/dense_on_gpu.h"

namespace dofla::test {

// Rows between steps lose their last bit, and enter a product with sixteen bits.
inline constexpr double kProgramRow = 0x1p-22, kProgramFactor = 0x1p-17;

class ProgramOnGpu : public DenseOnGpu {
 protected:
  static constexpr int64_t kTokens = 5;

  void SetUp() override {
    DenseOnGpu::SetUp();
    if (IsSkipped()) return;
    if (!runs_token_programs()) GTEST_SKIP() << "this GPU runs no token programs";
  }

  // A table whose row of every token enters a program.
  Tensor table(int64_t width, int64_t tokens = kTokens) { return kept(narrow({tokens, width})); }
  // What a program speaks of lives as long as it does.
  Tensor kept(const Tensor& x) {
    memory_.push_back(x);
    return x;
  }
  Tensor enter(TokenProgram& program, const Tensor& table) {
    return program.embed(kept(table.to(gpu)), {});
  }
  // What a row between steps holds, which only a product can read.
  Tensor leave(TokenProgram& program, const Tensor& row) {
    const int64_t width = row.size(1);
    Tensor one = Tensor::zeros({width, width});
    for (int64_t i = 0; i < width; ++i) one.data<float>()[i * width + i] = 1;
    return program.dense(row, {.linear = {kept(one.to(DType::kBF16).to(gpu)), false, {}}},
                         DType::kF32);
  }

 private:
  std::vector<Tensor> memory_;
};

}  // namespace dofla::test
