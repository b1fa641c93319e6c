// What is done element by element: the GPU against the CPU, and launches against their parts.
#include "dofla/ops/activation.h"

#include <limits>

#include "tests/support/gpu.h"
#include "tests/support/random_values.h"

namespace dofla {
namespace {

constexpr double kEps = std::numeric_limits<float>::epsilon();

class CudaActivation : public test::OnGpu {
 protected:
  Tensor normal(const Shape& shape) { return test::normal_tensor(shape, random); }

  Random random{5};
};

// erf and exp of the GPU are good to a few ulp, as those of the CPU are.
TEST_F(CudaActivation, Activations) {
  for (const int64_t count : {1, 7, 1001}) {
    const Tensor x = normal({count}), grad = normal({count});
    for (const Activation activation :
         {Activation::kGelu, Activation::kGeluTanh, Activation::kSilu, Activation::kRelu}) {
      Tensor cpu = x.clone(), there = x.to(gpu).clone();
      activate(activation, cpu);
      activate(activation, there);
      expect_close(there, cpu, 16 * kEps, "forward");
      Tensor cpu_grad = grad.clone(), gpu_grad = grad.to(gpu).clone();
      activate_backward(activation, x, cpu_grad);
      activate_backward(activation, x.to(gpu), gpu_grad);
      expect_close(gpu_grad, cpu_grad, 16 * kEps, "backward");
    }
  }
}

// One launch rounds what two would have written: the very bits, in both types, where elements are
// read in packs, one by one at the end, and all one by one.
TEST_F(CudaActivation, GatesHaveTheBitsOfTheirParts) {
  for (const DType type : {DType::kF32, DType::kBF16})
    for (const int64_t begin : {0, 1})
      for (const Activation f :
           {Activation::kGelu, Activation::kGeluTanh, Activation::kSilu, Activation::kRelu}) {
        const auto some = [&] {
          return normal({5000 + begin}).to(type).to(gpu).slice(begin, 5000 + begin);
        };
        const Tensor inner = some(), gated = some(), grad = some();
        Tensor forward = inner.clone();
        activate(f, forward);
        EXPECT_TRUE(test::same_bits(here(activated(f, inner)), here(forward)));
        Tensor of_gated = grad.clone(), of_inner = grad.clone();
        multiply(of_gated, forward);
        multiply(forward, gated);
        EXPECT_TRUE(test::same_bits(here(gate(f, inner, gated)), here(forward)));
        multiply(of_inner, gated);
        activate_backward(f, inner, of_inner);
        for (const bool wanted : {false, true}) {
          Tensor result;
          const GateGradients found =
              gate_backward(f, inner, gated, grad.clone(), wanted ? &result : nullptr);
          EXPECT_TRUE(test::same_bits(here(found.inner), here(of_inner)));
          EXPECT_TRUE(test::same_bits(here(found.gated), here(of_gated)));
          EXPECT_EQ(result.defined(), wanted);
          if (wanted) {
            EXPECT_TRUE(test::same_bits(here(result), here(forward)));
          }
        }
      }
}

TEST_F(CudaActivation, SumsAndProducts) {
  const Tensor x = normal({13, 5}), y = normal({13, 5});
  Tensor sum = x.clone(), gpu_sum = x.to(gpu), product = x.clone(), gpu_product = x.to(gpu);
  add(sum, y);
  add(gpu_sum, y.to(gpu));
  multiply(product, y);
  multiply(gpu_product, y.to(gpu));
  EXPECT_TRUE(test::same_bits(here(gpu_sum), sum));
  Tensor difference = x.clone(), gpu_difference = x.to(gpu);
  subtract(0.25f, y, difference);
  subtract(0.25f, y.to(gpu), gpu_difference);
  EXPECT_TRUE(test::same_bits(here(gpu_difference), difference));
  scale(0.3f, difference);
  scale(0.3f, gpu_difference);
  EXPECT_TRUE(test::same_bits(here(gpu_difference), difference));
  EXPECT_TRUE(test::same_bits(here(gpu_product), product));
}

}  // namespace
}  // namespace dofla
