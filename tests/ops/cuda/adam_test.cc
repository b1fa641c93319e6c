// The optimizer on a GPU against the CPU.
#include "dofla/ops/adam.h"

#include <limits>

#include "tests/support/gpu.h"
#include "tests/support/random_values.h"

namespace dofla {
namespace {

constexpr double kEps = std::numeric_limits<float>::epsilon();

class CudaAdam : public test::OnGpu {
 protected:
  // Fewer elements than threads, a block's stretch and more, and more than one round of all blocks.
  std::vector<Tensor> gradients() {
    std::vector<Tensor> all;
    for (const int64_t count : {1, 255, 257, 256 * 256 + 3, 300 * 1000})
      all.push_back(test::normal_tensor({count}, random));
    return all;
  }
  std::vector<Tensor> on_gpu(const std::vector<Tensor>& all) const {
    std::vector<Tensor> there;
    for (const Tensor& x : all) there.push_back(x.to(gpu));
    return there;
  }

  Random random{9};
};

// Sums of squares in double: what is left is the order of adding up.
TEST_F(CudaAdam, ClipsByTheNormOfAllGradients) {
  std::vector<Tensor> cpu = gradients();
  std::vector<Tensor> there = on_gpu(cpu);
  const double norm = global_norm(cpu);
  const double rounding = std::numeric_limits<double>::epsilon() * 1e6;
  EXPECT_NEAR(global_norm(there), norm, rounding * norm);
  EXPECT_EQ(clip_by_global_norm(2 * norm, there), global_norm(there));
  for (size_t i = 0; i < cpu.size(); ++i) EXPECT_TRUE(test::same_bits(here(there[i]), cpu[i])) << i;
  clip_by_global_norm(1, cpu);
  EXPECT_NEAR(clip_by_global_norm(1, there), norm, rounding * norm);
  for (size_t i = 0; i < cpu.size(); ++i) expect_close(there[i], cpu[i], 2 * kEps, "clipped");
  EXPECT_NEAR(global_norm(there), 1, kEps);
}

TEST_F(CudaAdam, ANormThatIsNotFiniteLeavesGradientsAlone) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<Tensor> cpu = gradients();
    cpu.back().data<float>()[299999] = bad;
    std::vector<Tensor> there = on_gpu(cpu);
    EXPECT_FALSE(std::isfinite(clip_by_global_norm(1, there)));
    for (size_t i = 0; i < cpu.size(); ++i)
      EXPECT_TRUE(test::same_bits(here(there[i]), cpu[i])) << i;
  }
}

// Squares beyond the range of float.
TEST_F(CudaAdam, NormsOfHugeGradientsAreFinite) {
  Tensor huge({2});
  huge.data<float>()[0] = 3e30f;
  huge.data<float>()[1] = 4e30f;
  const Tensor there[] = {huge.to(gpu)};
  EXPECT_NEAR(global_norm(there), 5e30, 5e30 * kEps);
}

TEST_F(CudaAdam, GradientsOfTwoDevicesAreRefused) {
  const Tensor x = test::normal_tensor({3}, random);
  const Tensor both[] = {x, x.to(gpu)};
  EXPECT_THROW(global_norm(both), std::invalid_argument);
}

// Each step rounds the parameter a few times, and the step of size lr to a few ulp.
TEST_F(CudaAdam, TakesTheStepsOfTheCpu) {
  const AdamOptions options = {.learning_rate = 0.02, .weight_decay = 0.1};
  Tensor p = test::normal_tensor({1000}, random), there = p.to(gpu);
  AdamMoments moments = new_adam_moments(p), gpu_moments = new_adam_moments(there);
  for (int step = 1; step <= 3; ++step) {
    const Tensor gradient = test::normal_tensor({1000}, random);
    adam_step(gradient, options, moments, p);
    adam_step(gradient.to(gpu), options, gpu_moments, there);
    expect_close(there, p, step * kEps * (2 + 8 * options.learning_rate), "parameter");
    expect_close(gpu_moments.mean, moments.mean, 2 * step * kEps, "mean");
    expect_close(gpu_moments.square, moments.square, 2 * step * kEps, "square");
  }
}

// The same chances: what both round differs only where their moments do, by the last place of
// float32, so that hardly an element falls to the other neighbour.
TEST_F(CudaAdam, RoundsMomentsInBf16AsTheCpuDoes) {
  constexpr int64_t kCount = 100'003;
  const Tensor gradient = test::normal_tensor({kCount}, random);
  Tensor p = test::normal_tensor({kCount}, random), there = p.to(gpu);
  AdamMoments moments = new_adam_moments(p, DType::kBF16);
  AdamMoments gpu_moments = new_adam_moments(there, DType::kBF16);
  moments.seed = gpu_moments.seed = 7;
  moments.first = gpu_moments.first = 4096;
  adam_step(gradient, {}, moments, p);
  adam_step(gradient.to(gpu), {}, gpu_moments, there);
  for (const auto& [found, expected] :
       {std::pair(gpu_moments.mean, moments.mean), std::pair(gpu_moments.square, moments.square)}) {
    const Tensor copy = here(found);
    int64_t differ = 0;
    for (int64_t i = 0; i < kCount; ++i)
      differ += copy.data<BFloat16>()[i].bits != expected.data<BFloat16>()[i].bits ? 1 : 0;
    EXPECT_LE(differ, kCount / 1000);  // a last place is 2⁻¹⁶ of the spacing
  }
  expect_close(there, p, 8 * kEps, "parameter");
}

}  // namespace
}  // namespace dofla
