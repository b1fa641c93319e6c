#include "dofla/ops/cpu/vector_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "dofla/core/random.h"

namespace dofla::cpu {
namespace {

constexpr float kEps = std::numeric_limits<float>::epsilon();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kGuard = 12345;

// `count` normal values and one guard behind them, which no kernel may touch.
std::vector<float> row(int64_t count, uint64_t seed) {
  Random random(seed);
  std::vector<float> out(static_cast<size_t>(count) + 1, kGuard);
  for (int64_t i = 0; i < count; ++i)
    out[static_cast<size_t>(i)] = static_cast<float>(random.normal());
  return out;
}

TEST(VectorRows, ElementwiseKernelsTouchTheirRowOnly) {
  for (int64_t n = 0; n <= 70; ++n) {
    const std::vector<float> x = row(n, 1), y = row(n, 2);
    std::vector<float> scaled = y, product = y, shifted = y, doubled = y, multiplied = y,
                       larger = y, sum = y, difference = y, exponential = y, in_place = y;
    add_scaled(x.data(), 3, n, scaled.data());
    add_product(x.data(), y.data(), n, product.data());
    add_constant(0.5f, n, shifted.data());
    scale_row(2, n, doubled.data());
    multiply(x.data(), n, multiplied.data());
    keep_larger(x.data(), n, larger.data());
    exp_of_sum(x.data(), y.data(), 1, n, sum.data());
    exp_of_difference(x.data(), y.data(), n, difference.data());
    exp_shifted(x.data(), 1, n, exponential.data());
    exp_and_sum(1, n, in_place.data());
    for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
      const float a = x[i], b = y[i], size = 8 * (1 + std::abs(a) + std::abs(b) + std::abs(a * b));
      EXPECT_NEAR(scaled[i], b + 3 * a, kEps * size);
      EXPECT_NEAR(product[i], b + a * b, kEps * size);
      EXPECT_EQ(shifted[i], b + 0.5f);
      EXPECT_EQ(doubled[i], 2 * b);
      EXPECT_EQ(multiplied[i], a * b);
      EXPECT_EQ(larger[i], std::max(a, b));
      EXPECT_NEAR(sum[i] / std::exp(a + b + 1), 1, kEps * size);
      EXPECT_NEAR(difference[i] / std::exp(a - b), 1, kEps * size);
      EXPECT_NEAR(exponential[i] / std::exp(a + 1), 1, kEps * size);
      EXPECT_NEAR(in_place[i] / std::exp(b - 1), 1, kEps * size);
    }
    for (const auto* out : {&scaled, &product, &shifted, &doubled, &multiplied, &larger, &sum,
                            &difference, &exponential, &in_place})
      EXPECT_EQ(out->back(), kGuard) << n;
  }
}

TEST(VectorRows, ReductionsCoverTheWholeRow) {
  for (int64_t n = 1; n <= 70; ++n) {
    const std::vector<float> x = row(n, 3), y = row(n, 4);
    double total = 0, inner = 0, exponentials = 0;
    float most = -kInfinity, most_of_sum = -kInfinity;
    for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
      total += x[i];
      inner += static_cast<double>(x[i]) * y[i];
      exponentials += std::exp(static_cast<double>(x[i]));
      most = std::max(most, x[i]);
      most_of_sum = std::max(most_of_sum, x[i] + y[i]);
    }
    const double tolerance = kEps * 4 * static_cast<double>(n);  // |x| and |y| stay below 4
    EXPECT_NEAR(row_sum(x.data(), n), total, tolerance);
    EXPECT_NEAR(dot(x.data(), y.data(), n), inner, 4 * tolerance);
    EXPECT_NEAR(log_sum_exp(x.data(), n), std::log(exponentials), tolerance + 4 * kEps);
    EXPECT_EQ(row_max(x.data(), n), most);
    EXPECT_EQ(max_of_sum(x.data(), y.data(), n), most_of_sum);
    std::vector<float> products(6, 1.0f), matrix;
    for (uint64_t r = 0; r < 6; ++r) {
      const std::vector<float> line = row(n, 10 + r);
      matrix.insert(matrix.end(), line.begin(), line.end() - 1);
    }
    add_matrix_vector(matrix.data(), x.data(), 2, 6, n, products.data());
    for (int64_t r = 0; r < 6; ++r)
      EXPECT_NEAR(products[static_cast<size_t>(r)], 1 + 2 * dot(matrix.data() + r * n, x.data(), n),
                  8 * tolerance);
    std::vector<float> weighted = y;
    add_weighted_rows(matrix.data(), products.data(), 6, n, weighted.data());
    for (int64_t i = 0; i < n; ++i) {
      double sum = y[static_cast<size_t>(i)], size = std::abs(sum);
      for (int64_t r = 0; r < 6; ++r) {
        const double term =
            double{products[static_cast<size_t>(r)]} * matrix[static_cast<size_t>(r * n + i)];
        sum += term, size += std::abs(term);
      }
      EXPECT_NEAR(weighted[static_cast<size_t>(i)], sum, 8 * kEps * size);
    }
    EXPECT_EQ(weighted.back(), kGuard) << n;
  }
  EXPECT_EQ(row_max(nullptr, 0), -kInfinity);
}

TEST(VectorRows, ExpIsAccurateOverItsRange) {
  std::vector<float> x, y;
  for (float at = -87; at <= 88; at += 0.0131f) x.push_back(at);
  y.resize(x.size());
  exp_shifted(x.data(), 0, static_cast<int64_t>(x.size()), y.data());
  for (size_t i = 0; i < x.size(); ++i)
    EXPECT_NEAR(y[i] / std::exp(static_cast<double>(x[i])), 1, 2 * kEps) << x[i];
}

TEST(VectorRows, ExpKeepsWhatIsNotFinite) {
  const std::vector<float> x = {-kInfinity, -200, 89, 1000, kInfinity, std::nanf("")};
  std::vector<float> y(x.size());
  exp_shifted(x.data(), 0, 6, y.data());
  EXPECT_EQ(y[0], 0);
  EXPECT_EQ(y[1], 0);
  EXPECT_EQ(y[2], kInfinity);
  EXPECT_EQ(y[3], kInfinity);
  EXPECT_EQ(y[4], kInfinity);
  EXPECT_TRUE(std::isnan(y[5]));
}

}  // namespace
}  // namespace dofla::cpu
