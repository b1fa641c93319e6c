#include "dofla/ops/cpu/tile_products.h"

#include <bit>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "dofla/core/tensor.h"
#include "tests/reference/compare.h"
#include "tests/support/random_values.h"
#include "tests/support/tolerance.h"

namespace dofla::cpu {
namespace {

class TileProducts : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_tile_products()) GTEST_SKIP() << "this processor has no products of tiles";
  }
};

// One side of a product: [rows, inner], or stored [inner, rows].
struct Side {
  Tensor stored;
  bool turned = false;

  int64_t rows() const { return stored.size(turned ? 1 : 0); }
  int64_t inner() const { return stored.size(turned ? 0 : 1); }
  TileSource source() const {
    return {.data = stored.raw(),
            .dtype = stored.dtype(),
            .rows = rows(),
            .inner = inner(),
            .row_step = turned ? 1 : inner(),
            .inner_step = turned ? rows() : 1};
  }
};

Side random_side(int64_t rows, int64_t inner, DType dtype, bool turned, double scale,
                 Random& random) {
  const Shape shape = turned ? Shape{inner, rows} : Shape{rows, inner};
  Tensor numbers = test::normal_tensor(shape, random);
  for (int64_t i = 0; i < numbers.count(); ++i)
    numbers.data<float>()[i] *= static_cast<float>(scale);
  if (dtype != DType::kF16) return {numbers.to(dtype), turned};
  Tensor halves(shape, DType::kF16);  // of every sign, significand and many exponents
  for (int64_t i = 0; i < halves.count(); ++i)
    halves.data<Float16>()[i].bits = static_cast<uint16_t>(
        random.below(2) << 15 | (10 + random.below(8)) << 10 | random.below(1024));
  return {halves, turned};
}

void fill(TileMatrix& tiles, TileSide side, const Side& from) {
  tiles.reset(side, from.source());
  fill_bands(tiles);
}

Tensor product(const Side& left, const Side& right) {
  TileMatrix a, b;
  fill(a, TileSide::kLeft, left);
  fill(b, TileSide::kRight, right);
  Tensor y({left.rows(), right.rows()});
  multiply_tiles(a, {0, a.bands()}, b, {0, b.bands()}, false, y.data<float>(), y.size(1));
  return y;
}

Tensor product_in_doubles(const Side& left, const Side& right) {
  const auto a = reference::to_doubles(left.stored), b = reference::to_doubles(right.stored);
  const auto at = [](const std::vector<double>& x, const Side& side, int64_t row, int64_t k) {
    return x[static_cast<size_t>(side.turned ? k * side.rows() + row : row * side.inner() + k)];
  };
  Tensor y({left.rows(), right.rows()}, DType::kF64);
  for (int64_t i = 0; i < left.rows(); ++i)
    for (int64_t j = 0; j < right.rows(); ++j) {
      double sum = 0;
      for (int64_t k = 0; k < left.inner(); ++k) sum += at(a, left, i, k) * at(b, right, j, k);
      y.data<double>()[i * right.rows() + j] = sum;
    }
  return y;
}

TEST_F(TileProducts, AreAsExactAsFloat32) {
  Random random(3);
  struct Extent {
    int64_t rows, columns, inner;
  };
  for (const auto& [rows, columns, inner] :
       {Extent{1, 1, 1}, {16, 16, 32}, {17, 33, 31}, {65, 40, 63}, {32, 70, 300}, {5, 3, 1000}})
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16})
      for (const bool left_turned : {false, true})
        for (const bool right_turned : {false, true})
          // The second pair of scales has parts far below and above the ordinary ones.
          for (const double scale : {1.0, 1e15}) {
            const Side left = random_side(rows, inner, DType::kF32, left_turned, 1 / scale, random);
            const Side right = random_side(columns, inner, dtype, right_turned, scale, random);
            test::expect_near(product(left, right), product_in_doubles(left, right),
                              test::product_tolerance(inner, test::largest(left.stored),
                                                      test::largest(right.stored)),
                              fmt::format("{} x {} x {} {} {} {} {}", rows, columns, inner,
                                          name(dtype), left_turned, right_turned, scale));
          }
}

// Every single product, where the tolerance of a sum would hide a part that is missing: what is
// left out is below 2⁻²⁶ (docs/kernels.md), and the sum of the parts rounds once more than float32
// does.
TEST_F(TileProducts, OfTwoNumbersHaveAllTheirBits) {
  Random random(7);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const Side left = random_side(48, 1, DType::kF32, false, 1, random);
    const Side right = random_side(48, 1, dtype, false, 1, random);
    const Tensor y = product(left, right), exact = product_in_doubles(left, right);
    for (int64_t i = 0; i < y.count(); ++i) {
      const double expected = std::as_const(exact).data<double>()[i];
      ASSERT_NEAR(y.data<float>()[i], expected, std::abs(expected) * test::kFloat32Epsilon)
          << name(dtype) << ' ' << i;
    }
  }
}

TEST_F(TileProducts, HaveTheSameBitsByBandsAndAdd) {
  Random random(4);
  const Side left = random_side(100, 500, DType::kF32, false, 1, random);
  const Side right = random_side(70, 500, DType::kBF16, true, 1, random);
  const Tensor whole = product(left, right);
  TileMatrix a, b;
  fill(a, TileSide::kLeft, left);
  fill(b, TileSide::kRight, right);
  Tensor y = Tensor::zeros(whole.shape());
  for (int64_t i = 0; i < a.bands(); ++i)
    for (int64_t j = 0; j < b.bands(); ++j)
      multiply_tiles(a, {i, i + 1}, b, {j, j + 1}, false, y.data<float>(), y.size(1));
  for (int64_t i = 0; i < y.count(); ++i)
    ASSERT_EQ(y.data<float>()[i], std::as_const(whole).data<float>()[i]) << i;
  multiply_tiles(a, {0, a.bands()}, b, {0, b.bands()}, true, y.data<float>(), y.size(1));
  for (int64_t i = 0; i < y.count(); ++i)
    ASSERT_NEAR(y.data<float>()[i], 2 * std::as_const(whole).data<float>()[i],
                test::product_tolerance(500, 5, 5));
}

TEST_F(TileProducts, MemoryOfALargerMatrixIsUsedAgain) {
  Random random(5);
  const Side right = random_side(20, 64, DType::kF32, false, 1, random);
  TileMatrix a, b;
  fill(b, TileSide::kRight, right);
  for (const int64_t rows : {90, 20, 50}) {
    const Side left = random_side(rows, 64, DType::kF32, false, 1, random);
    fill(a, TileSide::kLeft, left);
    Tensor y({rows, 20});
    multiply_tiles(a, {0, a.bands()}, b, {0, b.bands()}, false, y.data<float>(), 20);
    const Tensor fresh = product(left, right);
    for (int64_t i = 0; i < y.count(); ++i)
      ASSERT_EQ(y.data<float>()[i], std::as_const(fresh).data<float>()[i])
          << rows << " rows, " << i;
  }
}

TEST_F(TileProducts, WhatIsNotFiniteStaysSo) {
  Random random(6);
  const Side right = random_side(3, 40, DType::kBF16, false, 1, random);
  for (const float value :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN()}) {
    Side left = random_side(2, 40, DType::kF32, false, 1, random);
    left.stored.data<float>()[7] = value;
    const Tensor y = product(left, right);
    for (int64_t j = 0; j < 3; ++j) {
      EXPECT_FALSE(std::isfinite(y.data<float>()[j])) << value;
      EXPECT_TRUE(std::isfinite(y.data<float>()[3 + j])) << value;
    }
  }
}

}  // namespace
}  // namespace dofla::cpu
