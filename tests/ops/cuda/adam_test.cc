// The optimizer on a GPU against the CPU.
#include "dofla/ops/adam.h"

#include <cmath>
#include <limits>

#include "tests/support/adam_step_of_one.h"
#include "tests/support/gpu.h"
#include "tests/support/random_values.h"
#include "tests/support/tolerance.h"

namespace dofla {
namespace {

constexpr double kEps = std::numeric_limits<float>::epsilon();
constexpr double kEps64 = std::numeric_limits<double>::epsilon();

class CudaAdam : public test::OnGpu {
 protected:
  // Less than a round of a block's threads, parts of blocks and whole ones, a tensor without
  // elements, one that begins where no four elements can be read together, and more tensors than a
  // block has threads.
  std::vector<Tensor> gradients() {
    std::vector<Tensor> all;
    for (const int64_t count : {1, 255, 257, 4095, 0, 4096, 4097, 3 * 4096, 300 * 1000})
      all.push_back(test::normal_tensor({count}, random));
    for (int i = 0; i < 300; ++i) all.push_back(test::normal_tensor({i % 9}, random));
    all.push_back(test::normal_tensor({10'001}, random).slice(1, 10'001));
    return all;
  }
  // A copy there that begins where the original does, relative to a multiple of 16 bytes.
  Tensor there(const Tensor& x) const {
    const auto odd = static_cast<int64_t>(reinterpret_cast<uintptr_t>(x.raw()) % 16 / 4);
    Tensor whole({odd + x.count()}, x.dtype(), gpu);
    Tensor copy = whole.slice(odd, odd + x.count());
    copy.assign(x);
    return copy;
  }
  std::vector<Tensor> there(const std::vector<Tensor>& all) const {
    std::vector<Tensor> copies;
    for (const Tensor& x : all) copies.push_back(there(x));
    return copies;
  }
  static AdamOptions options_of(size_t i) {
    return {.learning_rate = 0.01 * static_cast<double>(1 + i % 3),
            .weight_decay = i % 2 == 0 ? 0.1 : 0};
  }
  // A random parameter for each gradient, on the CPU.
  std::vector<AdamParameter> parameters_of(const std::vector<Tensor>& gradients, DType moments) {
    std::vector<AdamParameter> all;
    for (size_t i = 0; i < gradients.size(); ++i) {
      const Tensor value = test::normal_tensor({gradients[i].count()}, random);
      all.push_back({.value = value,
                     .gradient = gradients[i],
                     .moments = new_adam_moments(value, moments),
                     .options = options_of(i),
                     .copy = Tensor(value.shape(), DType::kBF16)});
      all.back().moments.seed = i;
      if (i % 2 == 0) all.back().copy = Tensor();
    }
    return all;
  }
  std::vector<AdamParameter> there(const std::vector<AdamParameter>& all) const {
    std::vector<AdamParameter> copies = all;
    for (AdamParameter& one : copies) {
      one.gradient = there(one.gradient);
      for (Tensor* x : {&one.value, &one.moments.mean, &one.moments.square}) *x = x->to(gpu);
      if (one.copy.defined()) one.copy = one.copy.to(gpu);
    }
    return copies;
  }

  Random random{9};
};

// Sums of squares in double: what is left is the order of adding up, of the elements of a block and
// of the blocks.
TEST_F(CudaAdam, SumsSquaresAsTheCpuDoes) {
  const std::vector<Tensor> cpu = gradients(), gpus = there(cpu);
  const Tensor expected = block_squares(cpu), found = block_squares(gpus).to(Device());
  ASSERT_EQ(found.shape(), expected.shape());
  for (int64_t i = 0; i < found.count(); ++i)
    EXPECT_NEAR(found.data<double>()[i], expected.data<double>()[i],
                kSquaresBlock * kEps64 * expected.data<double>()[i])
        << i;
  const double norm = test::norm_of(cpu);
  EXPECT_NEAR(test::norm_of(gpus), norm,
              static_cast<double>(kSquaresBlock + found.count()) * kEps64 * norm);
  EXPECT_EQ(test::norm_of(gpus), test::norm_of(gpus));
}

// Squares beyond the range of float.
TEST_F(CudaAdam, NormsOfHugeGradientsAreFinite) {
  Tensor huge({2});
  huge.data<float>()[0] = 3e30f;
  huge.data<float>()[1] = 4e30f;
  const Tensor copy[] = {huge.to(gpu)};
  EXPECT_NEAR(test::norm_of(copy), 5e30, 5e30 * kEps);
}

TEST_F(CudaAdam, WhatIsOnTwoDevicesIsRefused) {
  const Tensor x = test::normal_tensor({3}, random);
  const Tensor both[] = {x, x.to(gpu)};
  EXPECT_THROW(gradient_norm(both), std::invalid_argument);
  AdamMoments moments = new_adam_moments(x);
  EXPECT_THROW(test::step_of_one(both[1], {}, moments, x), std::invalid_argument);
}

// Each step rounds the parameter a few times, and the step of size lr to a few ulp. A norm that is
// known up to rounding moves the scale of gradients by an ulp.
TEST_F(CudaAdam, TakesTheStepsOfTheCpuWithAllTensorsAtOnce) {
  for (const double most : {std::numeric_limits<double>::infinity(), 1.0}) {
    std::vector<AdamParameter> cpu = parameters_of(gradients(), DType::kF32), gpus = there(cpu);
    for (int step = 1; step <= 3; ++step) {
      std::vector<Tensor> of_cpu = gradients(), of_gpu = there(of_cpu);
      for (size_t i = 0; i < cpu.size(); ++i) {
        cpu[i].gradient = of_cpu[i];
        gpus[i].gradient = of_gpu[i];
      }
      EXPECT_TRUE(adam_step(cpu, gradient_norm(of_cpu), most));
      EXPECT_TRUE(adam_step(gpus, gradient_norm(of_gpu), most));
      for (size_t i = 0; i < of_cpu.size(); ++i)
        EXPECT_TRUE(test::same_bits(here(of_gpu[i]), of_cpu[i]));
    }
    for (size_t i = 0; i < cpu.size(); ++i) {
      if (cpu[i].value.count() == 0) continue;
      const double size = test::largest(cpu[i].value);
      const std::string what = "parameter " + std::to_string(i);
      expect_close(gpus[i].value, cpu[i].value,
                   3 * kEps * (2 + 8 * cpu[i].options.learning_rate / size), what);
      EXPECT_EQ(gpus[i].moments.steps, 3);
      if (gpus[i].copy.defined()) {
        EXPECT_TRUE(test::same_bits(here(gpus[i].copy),
                                    here(gpus[i].value).to(DType::kBF16).to(DType::kF32)));
      }
      if (cpu[i].value.count() < 100) continue;  // means of a few gradients may cancel
      expect_close(gpus[i].moments.mean, cpu[i].moments.mean, 9 * kEps, what);
      expect_close(gpus[i].moments.square, cpu[i].moments.square, 9 * kEps, what);
    }
  }
}

// What a block does depends on nothing but its elements: in company, and where elements are taken
// one by one, there are the bits of a step alone.
TEST_F(CudaAdam, ATensorHasTheBitsItHasAlone) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    const std::vector<AdamParameter> start = parameters_of(gradients(), type);
    std::vector<AdamParameter> together = there(start), alone = there(start);
    for (AdamParameter& one : alone) one.gradient = one.gradient.clone();  // at a multiple of 16
    adam_step(together);
    for (size_t i = 0; i < alone.size(); ++i) {
      adam_step({&alone[i], 1});
      EXPECT_TRUE(test::same_bits(here(together[i].value), here(alone[i].value))) << i;
      EXPECT_TRUE(test::same_bits(here(together[i].moments.mean), here(alone[i].moments.mean)));
      EXPECT_TRUE(test::same_bits(here(together[i].moments.square), here(alone[i].moments.square)));
    }
  }
}

TEST_F(CudaAdam, ANormThatIsNotFiniteChangesNothing) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<Tensor> all = gradients();
    all[8].data<float>()[299'999] = bad;
    const std::vector<AdamParameter> start = parameters_of(all, DType::kF32);
    std::vector<AdamParameter> stepped = there(start);
    EXPECT_FALSE(adam_step(stepped, gradient_norm(there(all)), 1));
    for (size_t i = 0; i < start.size(); ++i) {
      EXPECT_TRUE(test::same_bits(here(stepped[i].value), start[i].value)) << i;
      EXPECT_TRUE(test::same_bits(here(stepped[i].moments.mean), start[i].moments.mean)) << i;
      EXPECT_EQ(stepped[i].moments.steps, 0);
    }
  }
}

// The same chances: what both round differs only where their moments do, by the last place of
// float32, so that hardly an element falls to the other neighbour.
TEST_F(CudaAdam, RoundsMomentsInBf16AsTheCpuDoes) {
  constexpr int64_t kCount = 100'003;
  const Tensor gradient = test::normal_tensor({kCount}, random);
  const Tensor p = test::normal_tensor({kCount}, random), on_gpu = p.to(gpu);
  AdamMoments moments = new_adam_moments(p, DType::kBF16);
  AdamMoments gpu_moments = new_adam_moments(on_gpu, DType::kBF16);
  moments.seed = gpu_moments.seed = 7;
  moments.first = gpu_moments.first = 4096;
  test::step_of_one(gradient, {}, moments, p);
  test::step_of_one(gradient.to(gpu), {}, gpu_moments, on_gpu);
  for (const auto& [found, expected] :
       {std::pair(gpu_moments.mean, moments.mean), std::pair(gpu_moments.square, moments.square)}) {
    const Tensor copy = found.to(Device());
    int64_t differ = 0;
    for (int64_t i = 0; i < kCount; ++i)
      differ += copy.data<BFloat16>()[i].bits != expected.data<BFloat16>()[i].bits ? 1 : 0;
    EXPECT_LE(differ, kCount / 1000);  // a last place is 2⁻¹⁶ of the spacing
  }
  expect_close(on_gpu, p, 8 * kEps, "parameter");
}

}  // namespace
}  // namespace dofla
