#include "dofla/ops/activation.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>

#include <gtest/gtest.h>

#include "dofla/core/random.h"
#include "tests/support/random_values.h"

namespace dofla {
namespace {

// Massive activations are real: a trained GPT-2 reaches −40 before its GELU, where the exponential
// inside leaves the range of float32.
TEST(Activation, FarFromZeroItIsZeroOrTheIdentity) {
  const float far[] = {-1e4f, -100.0f, -40.0f, 40.0f, 100.0f, 1e4f};
  for (const Activation activation :
       {Activation::kGelu, Activation::kGeluTanh, Activation::kSilu, Activation::kRelu}) {
    Tensor x({6});
    std::copy(std::begin(far), std::end(far), x.data<float>());
    activate(activation, x);
    for (int i = 0; i < 6; ++i)
      EXPECT_NEAR(x.data<float>()[i], std::max(far[i], 0.0f), 1e-6f * std::abs(far[i]));
  }
}

struct Derivative {
  Activation activation;
  std::function<double(double)> forward;
};

std::vector<Derivative> derivatives() {
  return {
      {Activation::kGelu, [](double x) { return x / 2 * std::erfc(-x / std::numbers::sqrt2); }},
      {Activation::kGeluTanh,
       [](double x) {
         const double u = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
         return x / 2 * (1 + std::tanh(u));
       }},
      {Activation::kSilu, [](double x) { return x / (1 + std::exp(-x)); }},
      {Activation::kRelu, [](double x) { return std::max(x, 0.0); }},
  };
}

// Within 16 ulps of 1: erf is good to 1.5e-7, and where a slope is not 0 or 1 the exponents and the
// factors before the exponentials stay below 8, each a rounding of its own.
TEST(Activation, DerivativesAreTheSlopes) {
  const double tolerance = 16 * static_cast<double>(std::numeric_limits<float>::epsilon());
  const double step = 1e-5;
  const int64_t count = 2001;
  for (const Derivative& one : derivatives()) {
    Tensor x({count}), grad({count});
    for (int64_t i = 0; i < count; ++i) {
      x.data<float>()[i] = static_cast<float>(i - count / 2) * 0.0121f + 0.003f;  // not 0: relu
      grad.data<float>()[i] = i % 2 == 0 ? 1.0f : -2.0f;
    }
    const Tensor factor = grad.clone();
    activate_backward(one.activation, x, grad);
    for (int64_t i = 0; i < count; ++i) {
      const double at = x.data<float>()[i], scale = factor.data<float>()[i];
      const double slope = (one.forward(at + step) - one.forward(at - step)) / (2 * step);
      EXPECT_NEAR(grad.data<float>()[i], scale * slope, std::abs(scale) * tolerance) << at;
    }
  }
}

TEST(Activation, DerivativesFarFromZeroAreZeroOrOne) {
  const float far[] = {-1e30f, -1e4f, -100.0f, 100.0f, 1e4f, 1e30f};
  for (const Derivative& one : derivatives()) {
    Tensor x({6}), grad({6});
    std::copy(std::begin(far), std::end(far), x.data<float>());
    std::fill_n(grad.data<float>(), 6, 1.0f);
    activate_backward(one.activation, x, grad);
    for (int i = 0; i < 6; ++i) EXPECT_NEAR(grad.data<float>()[i], far[i] > 0 ? 1 : 0, 1e-30);
  }
}

// By the chain rule from the derivative of the activation alone.
TEST(Activation, GatesAreProducts) {
  const int64_t count = 1001;
  Random random(3);
  const Tensor inner = test::normal_tensor({count}, random);
  const Tensor gated = test::normal_tensor({count}, random);
  const Tensor grad = test::normal_tensor({count}, random);
  for (const Derivative& one : derivatives()) {
    Tensor forward = activated(one.activation, inner), of_gated = forward.clone();
    multiply(forward, gated);
    multiply(of_gated, grad);
    Tensor of_inner = grad.clone();
    multiply(of_inner, gated);
    activate_backward(one.activation, inner, of_inner);
    EXPECT_TRUE(test::same_bits(gate(one.activation, inner, gated), forward));
    for (const bool wanted : {false, true}) {
      Tensor result;
      const GateGradients found =
          gate_backward(one.activation, inner, gated, grad.clone(), wanted ? &result : nullptr);
      EXPECT_TRUE(test::same_bits(found.inner, of_inner));
      EXPECT_TRUE(test::same_bits(found.gated, of_gated));
      EXPECT_EQ(result.defined(), wanted);
      if (wanted) {
        EXPECT_TRUE(test::same_bits(result, forward));
      }
    }
  }
  EXPECT_THROW(gate(Activation::kSilu, inner, Tensor::zeros({count - 1})), std::invalid_argument);
}

}  // namespace
}  // namespace dofla
