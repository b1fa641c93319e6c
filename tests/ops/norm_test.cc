#include "dofla/ops/norm.h"

#include <cmath>

#include <gtest/gtest.h>

#include "tests/reference/attention_case.h"
#include "tests/reference/compare.h"
#include "tests/reference/slopes.h"
#include "tests/support/random_values.h"
#include "tests/support/tolerance.h"

namespace dofla {
namespace {

using reference::to_tensor;

struct NormCase {
  NormCase(int64_t row_count, int64_t columns, bool is_centered)
      : rows(row_count), width(columns), centered(is_centered) {
    Random random(5);
    x = test::normal_values(rows * width, random);
    for (double& value : x) value = static_cast<float>(2 * value + 0.5);
    weight = test::normal_values(width, random);
    bias = test::normal_values(width, random);
    grad = test::normal_values(rows * width, random);
  }

  // Σ grad · norm(x).
  double loss() const {
    double sum = 0;
    for (int64_t r = 0; r < rows; ++r) {
      const double* row = x.data() + r * width;
      double mean = 0, square = 0;
      for (int64_t i = 0; i < width && centered; ++i) mean += row[i] / static_cast<double>(width);
      for (int64_t i = 0; i < width; ++i)
        square += (row[i] - mean) * (row[i] - mean) / static_cast<double>(width);
      for (int64_t i = 0; i < width; ++i) {
        const auto c = static_cast<size_t>(i);
        const double unit = (row[i] - mean) / std::sqrt(square + epsilon);
        const double y = unit * weight[c] + (centered ? bias[c] : 0);
        sum += grad[static_cast<size_t>(r * width + i)] * y;
      }
    }
    return sum;
  }

  int64_t rows, width;
  bool centered;
  double epsilon = 1e-3;
  std::vector<double> x, weight, bias, grad;
};

// Three sums feed into each other: mean, variance and the means of the gradient.
void expect_slopes(const Tensor& found, const std::vector<double>& expected, int64_t length,
                   const std::string& what) {
  const double size = reference::largest(expected);
  reference::expect_near(found, expected,
                         test::float32_tolerance(length, 3, size) + reference::slope_error(size),
                         what);
}

TEST(NormBackward, HasTheSlopesOfTheForward) {
  for (const bool centered : {true, false})
    for (const int64_t rows : {1, 63, 64, 65}) {
      NormCase c(rows, 19, centered);
      const auto loss = [&] { return c.loss(); };
      const Tensor x = to_tensor(c.x, {rows, c.width}), weight = to_tensor(c.weight, {c.width});
      const Tensor grad = to_tensor(c.grad, {rows, c.width});
      Tensor grad_weight = Tensor::zeros({c.width}), grad_bias = Tensor::zeros({c.width});
      const Tensor grad_x =
          centered ? layer_norm_backward(x, weight, c.epsilon, grad, &grad_weight, &grad_bias)
                   : rms_norm_backward(x, weight, c.epsilon, grad, &grad_weight);
      const std::string what = fmt::format("{} rows, centered {}: ", rows, centered);
      expect_slopes(grad_x, reference::slopes(c.x, loss), c.width, what + "x");
      expect_slopes(grad_weight, reference::slopes(c.weight, loss), rows, what + "weight");
      if (centered) expect_slopes(grad_bias, reference::slopes(c.bias, loss), rows, what + "bias");
    }
}

TEST(NormBackward, AddsToTheGradientsOfWeightAndBias) {
  const NormCase c(9, 16, true);
  const Tensor x = to_tensor(c.x, {3, 3, 16}), weight = to_tensor(c.weight, {16});
  const Tensor grad = to_tensor(c.grad, {3, 3, 16});
  Tensor grad_weight = Tensor::zeros({16}), grad_bias = Tensor::zeros({16});
  layer_norm_backward(x, weight, c.epsilon, grad, &grad_weight, &grad_bias);
  const Tensor once_weight = grad_weight.clone(), once_bias = grad_bias.clone();
  layer_norm_backward(x, weight, c.epsilon, grad, &grad_weight, &grad_bias);
  for (int64_t i = 0; i < 16; ++i) {
    EXPECT_EQ(grad_weight.data<float>()[i], 2 * once_weight.data<float>()[i]);
    EXPECT_EQ(grad_bias.data<float>()[i], 2 * once_bias.data<float>()[i]);
  }
}

TEST(NormBackward, AddsToWhatComesPastTheNorm) {
  const NormCase c(9, 19, true);
  const Tensor x = to_tensor(c.x, {9, 19}), weight = to_tensor(c.weight, {19});
  const Tensor grad = to_tensor(c.grad, {9, 19}), past = weight.repeat(9).reshape({9, 19});
  for (const bool centered : {true, false}) {
    const auto backward = [&](const Tensor& addend) {
      return centered ? layer_norm_backward(x, weight, c.epsilon, grad, nullptr, nullptr, addend)
                      : rms_norm_backward(x, weight, c.epsilon, grad, nullptr, addend);
    };
    Tensor expected = backward(Tensor());
    for (int64_t i = 0; i < expected.count(); ++i)
      expected.data<float>()[i] += past.data<float>()[i];
    EXPECT_TRUE(test::same_bits(backward(past), expected));
  }
}

TEST(NormBackward, RefusesShapesThatDoNotFit) {
  const Tensor x = Tensor::zeros({4, 8}), weight = Tensor::zeros({8});
  Tensor small = Tensor::zeros({7});
  EXPECT_THROW(layer_norm_backward(x, weight, 1e-5, Tensor::zeros({4, 7}), nullptr, nullptr),
               std::invalid_argument);
  EXPECT_THROW(layer_norm_backward(x, weight, 1e-5, x, &small, nullptr), std::invalid_argument);
  EXPECT_THROW(layer_norm_backward(x, weight, 1e-5, x, nullptr, &small), std::invalid_argument);
  EXPECT_THROW(rms_norm_backward(x, small, 1e-5, x, nullptr), std::invalid_argument);
  EXPECT_THROW(rms_norm_backward(x, weight, 1e-5, x, nullptr, small), std::invalid_argument);
}

}  // namespace
}  // namespace dofla
