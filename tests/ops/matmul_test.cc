#include "dofla/ops/matmul.h"

#include <cmath>

#include <gtest/gtest.h>

#include "tests/reference/attention_case.h"
#include "tests/reference/compare.h"
#include "tests/reference/slopes.h"
#include "tests/support/random_values.h"
#include "tests/support/tolerance.h"

namespace dofla {
namespace {

using reference::to_doubles;
using reference::to_tensor;

// Whole numbers with a factor an output.
Tensor as_scaled(const Tensor& weight, bool input_major) {
  const int64_t columns = weight.size(1), outputs = weight.size(input_major ? 1 : 0);
  Tensor whole(weight.shape(), DType::kI8);
  Tensor factors(input_major ? Shape{1, outputs} : Shape{outputs, 1});
  for (int64_t i = 0; i < whole.count(); ++i)
    whole.data<int8_t>()[i] = static_cast<int8_t>(i * 37 % 255 - 127);
  for (int64_t n = 0; n < outputs; ++n)
    factors.data<float>()[n] = (1 + std::abs(weight.data<float>()[n % columns])) / 127;
  return Tensor::scaled(whole, factors);
}

Tensor as_type(const Tensor& weight, DType dtype, bool input_major) {
  if (dtype == DType::kI8) return as_scaled(weight, input_major);
  if (dtype != DType::kF16) return weight.to(dtype);
  Tensor out(weight.shape(), DType::kF16);
  for (int64_t i = 0; i < out.count(); ++i)  // powers of two: bits that need no rounding
    out.data<Float16>()[i].bits = static_cast<uint16_t>(0x3000 + (i * 7 % 5) * 0x400);
  return out;
}

Linear random_linear(int64_t inputs, int64_t outputs, DType dtype, bool input_major,
                     Random& random) {
  const Shape shape = input_major ? Shape{inputs, outputs} : Shape{outputs, inputs};
  return {.weight = as_type(test::normal_tensor(shape, random), dtype, input_major),
          .input_major = input_major,
          .bias = test::normal_tensor({outputs}, random)};
}

// What rounding a row of x to 16 bits does to an output at most: half a step of every input, and of
// a float32 product the rest. `weight` are those of one output, with their factors; where factors
// are of the inputs, x has them instead.
double rounding_of_row(const float* x, const std::vector<double>& weight) {
  double largest = 0, sum = 0;
  for (size_t k = 0; k < weight.size(); ++k) {
    largest = std::max(largest, std::abs(double{x[k]}));
    sum += std::abs(weight[k]);
  }
  return 0.5 * (1 + 1e-3) * largest / 32767 * sum;
}

// [outputs, inputs] in double, whatever the layout.
std::vector<std::vector<double>> output_rows(const Linear& linear) {
  const std::vector<double> flat = to_doubles(linear.weight);
  std::vector<std::vector<double>> rows(static_cast<size_t>(linear.outputs()));
  for (int64_t n = 0; n < linear.outputs(); ++n)
    for (int64_t k = 0; k < linear.inputs(); ++k)
      rows[static_cast<size_t>(n)].push_back(flat[static_cast<size_t>(
          linear.input_major ? k * linear.outputs() + n : n * linear.inputs() + k)]);
  return rows;
}

// A sequence that decodes among others has to give what it gives alone. The inputs fill no vector,
// and the shares of a weight with its inputs first are longer than one tile of it.
TEST(Matmul, ARowHasTheSameBitsInAnyCompany) {
  Random random(11);
  for (const auto& [inputs, outputs] :
       {std::pair{203, 331}, std::pair{1111, 40}, std::pair{5, 3}, std::pair{112, 70}})
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8})
      for (const bool input_major : {false, true}) {
        const Linear linear = random_linear(inputs, outputs, dtype, input_major, random);
        const Tensor x = test::normal_tensor({64, inputs}, random);
        const auto weight = output_rows(linear);
        for (const int64_t rows : {1, 2, 4, 5, 9, 16, 64})
          for (const int threads : {1, 2}) {
            const int64_t begin = 64 - rows;
            const Tensor all =
                test::with_threads(threads, [&] { return matmul(x.slice(begin, 64), linear); });
            for (int64_t r = 0; r < rows; ++r) {
              const Tensor alone = matmul(x.slice(begin + r, begin + r + 1), linear);
              ASSERT_TRUE(test::same_bits(all.slice(r, r + 1), alone))
                  << inputs << "x" << outputs << " " << name(dtype) << ", inputs first "
                  << input_major << ", row " << r << " of " << rows;
            }
          }
        // And they are the product.
        const Tensor y = matmul(x, linear);
        for (int64_t r = 0; r < 64; r += 21)
          for (int64_t n = 0; n < outputs; ++n) {
            double sum = linear.bias.data<float>()[n], size = 0;
            for (int64_t k = 0; k < inputs; ++k) {
              const double term = weight[static_cast<size_t>(n)][static_cast<size_t>(k)] *
                                  x.data<float>()[r * inputs + k];
              sum += term;
              size += std::abs(term);
            }
            const double rounding =
                dtype == DType::kI8
                    ? rounding_of_row(x.data<float>() + r * inputs, weight[static_cast<size_t>(n)])
                    : 0;
            ASSERT_NEAR(y.data<float>()[r * outputs + n], sum, 1e-6 * size + 1e-6 + rounding);
          }
      }
}

// More rows than that meet widened weights, which have the factors in them; fewer are rounded
// to 16 bits.
TEST(Matmul, ScaledWeightsAreTheirProductsWithTheirFactors) {
  Random random(12);
  const int64_t inputs = 70, outputs = 400, rows = 130;  // more outputs than two panels hold
  for (const bool input_major : {false, true}) {
    const Linear scaled = random_linear(inputs, outputs, DType::kI8, input_major, random);
    const Linear exact = {
        .weight = scaled.weight.to(DType::kF32), .input_major = input_major, .bias = scaled.bias};
    const Tensor x = test::normal_tensor({rows, inputs}, random);
    const double float_tolerance =
        test::product_tolerance(inputs, test::largest(x), test::largest(exact.weight));
    const double step = test::largest(x) / 32767;
    const double rounding = 0.5 * static_cast<double>(inputs) * step * test::largest(exact.weight);
    for (const int64_t few : {int64_t{1}, int64_t{64}, rows})
      test::expect_near(matmul(x.slice(0, few), scaled), matmul(x.slice(0, few), exact),
                        float_tolerance + (few == rows ? 0 : rounding),
                        fmt::format("{} rows, inputs first {}", few, input_major));
  }
}

// More inputs than a part of the activations has, and more rows than a part of so many inputs.
TEST(Matmul, LargeProductsAreMadeOfParts) {
  Random random(13);
  const int64_t inputs = 8205, outputs = 35, rows = 350;
  const Tensor x = test::normal_tensor({rows, inputs}, random);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8})
    for (const bool input_major : {false, true}) {
      const Linear linear = random_linear(inputs, outputs, dtype, input_major, random);
      const auto weight = output_rows(linear);
      const double tolerance =
          test::product_tolerance(inputs, test::largest(x), test::largest(linear.weight));
      const Tensor y = matmul(x, linear);
      for (int64_t r = 0; r < rows; r += 29)
        for (int64_t n = 0; n < outputs; ++n) {
          double sum = linear.bias.data<float>()[n];
          for (int64_t k = 0; k < inputs; ++k)
            sum += weight[static_cast<size_t>(n)][static_cast<size_t>(k)] *
                   x.data<float>()[r * inputs + k];
          ASSERT_NEAR(y.data<float>()[r * outputs + n], sum, tolerance)
              << name(dtype) << ' ' << input_major << " row " << r << " output " << n;
        }
    }
}

TEST(MatmulBackward, GradientOfXForEveryTypeAndLayout) {
  Random random(3);
  const int64_t inputs = 201, outputs = 37;  // more inputs than a panel holds
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8})
    for (const bool input_major : {false, true})
      for (const int64_t rows : {1, 63, 64, 65}) {
        const Linear linear = random_linear(inputs, outputs, dtype, input_major, random);
        const Tensor grad_y = test::normal_tensor({rows, outputs}, random);
        const auto weight = output_rows(linear);
        std::vector<double> expected(static_cast<size_t>(rows * inputs), 0.0);
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t n = 0; n < outputs; ++n)
            for (int64_t k = 0; k < inputs; ++k)
              expected[static_cast<size_t>(r * inputs + k)] +=
                  grad_y.data<float>()[r * outputs + n] *
                  weight[static_cast<size_t>(n)][static_cast<size_t>(k)];
        const double most = test::largest(grad_y) * test::largest(linear.weight);
        const bool rounded = dtype == DType::kI8 && rows <= 64;
        reference::expect_near(
            matmul_backward(grad_y, linear), expected,
            test::product_tolerance(outputs, 1, most) +
                (rounded ? 0.5 * static_cast<double>(outputs) * most / 32767 : 0),
            fmt::format("{} rows, {}, input_major {}", rows, name(dtype), input_major));
      }
}

TEST(MatmulBackward, AddsTheGradientsOfWeightAndBias) {
  Random random(4);
  const int64_t inputs = 130, outputs = 515;  // more than one tile either way
  for (const bool input_major : {false, true})
    for (const int64_t rows : {1, 63, 64, 65}) {
      const Tensor x = test::normal_tensor({rows, inputs}, random);
      const Tensor grad_y = test::normal_tensor({rows, outputs}, random);
      const Shape shape = input_major ? Shape{inputs, outputs} : Shape{outputs, inputs};
      Linear gradient = {.weight = test::normal_tensor(shape, random),
                         .input_major = input_major,
                         .bias = test::normal_tensor({outputs}, random)};
      std::vector<double> weight = to_doubles(gradient.weight), bias = to_doubles(gradient.bias);
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t n = 0; n < outputs; ++n) {
          const double g = grad_y.data<float>()[r * outputs + n];
          bias[static_cast<size_t>(n)] += g;
          for (int64_t k = 0; k < inputs; ++k)
            weight[static_cast<size_t>(input_major ? k * outputs + n : n * inputs + k)] +=
                g * static_cast<double>(x.data<float>()[r * inputs + k]);
        }
      add_weight_gradient(x, grad_y, gradient);
      const double largest = test::largest(grad_y);
      const std::string what = fmt::format("{} rows, input_major {}", rows, input_major);
      reference::expect_near(gradient.weight, weight,
                             test::product_tolerance(rows + 1, test::largest(x), largest), what);
      reference::expect_near(gradient.bias, bias, test::product_tolerance(rows + 1, 1, largest),
                             what);
    }
}

}  // namespace
}  // namespace dofla
