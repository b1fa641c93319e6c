// Tests that need a GPU: they compare it with the CPU, and say that they were skipped where this
// build or this machine has none.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>

#include <gtest/gtest.h>

#include "dofla/core/device.h"
#include "dofla/core/error.h"
#include "dofla/core/tensor.h"
#include "dofla/ops/token_program.h"

namespace dofla::test {

class OnGpu : public testing::Test {
 protected:
  void SetUp() override {
    try {
      gpu = Device::cuda();
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
  }

  // In float32 on the CPU, whatever it was.
  static Tensor here(const Tensor& x) { return x.to(Device()).to(DType::kF32); }

  // Every element within `relative` of the largest expected one: what sums of products are good to.
  static void expect_close(const Tensor& actual, const Tensor& expected, double relative,
                           const std::string& what) {
    const Tensor a = here(actual), e = here(expected);
    ASSERT_EQ(a.shape(), e.shape()) << what;
    double largest = 0, worst = 0;
    for (int64_t i = 0; i < e.count(); ++i) {
      ASSERT_TRUE(std::isfinite(a.data<float>()[i])) << what << " [" << i << "]";
      largest = std::max(largest, std::abs(double{e.data<float>()[i]}));
      worst = std::max(worst, std::abs(double{a.data<float>()[i]} - e.data<float>()[i]));
    }
    EXPECT_LE(worst, relative * largest) << what;
  }

  // On a GPU without the kernel not even an embedding can be run.
  bool runs_token_programs() const {
    const auto program = token_program(gpu);
    program->embed(Tensor::zeros({1, 4}, DType::kBF16, gpu), {});
    return program->finish();
  }

  Device gpu;
};

}  // namespace dofla::test
