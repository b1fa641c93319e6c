#include "dofla/core/tensor.h"

#include <cmath>

#include <gtest/gtest.h>

namespace dofla {
namespace {

TEST(Tensor, SlicesAndReshapesShareMemory) {
  Tensor a = Tensor::zeros({4, 3});
  Tensor row = a.slice(1, 2).reshape({3});
  row.data<float>()[2] = 5;
  EXPECT_EQ(a.data<float>()[5], 5);
  EXPECT_EQ(a.slice(4, 4).count(), 0);
  EXPECT_THROW(a.slice(3, 5), std::invalid_argument);
  EXPECT_THROW(a.reshape({5}), std::invalid_argument);
}

TEST(Tensor, BorrowedMemoryIsReadOnly) {
  const float x[2] = {1, 2};
  Tensor a = Tensor::borrow(x, {2}, DType::kF32, nullptr);
  EXPECT_THROW(a.data<float>(), std::invalid_argument);
  EXPECT_EQ(std::as_const(a).data<float>()[1], 2);
  EXPECT_EQ(a.clone().data<float>()[1], 2);
}

TEST(Tensor, RepeatLaysCopiesEndToEnd) {
  const float x[2] = {1, 2};
  const Tensor a = Tensor::borrow(x, {1, 2}, DType::kF32, nullptr).repeat(3);
  EXPECT_EQ(a.shape(), (Shape{3, 2}));
  for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(a.data<float>()[i], x[i % 2]);
  EXPECT_THROW(a.repeat(0), std::invalid_argument);
  EXPECT_THROW(Tensor(Shape{}).repeat(2), std::invalid_argument);
}

// A view is only for operations that use its steps: no other can take it for dense memory.
TEST(Tensor, ViewsShareMemoryAndAreNotDense) {
  Tensor a = Tensor::zeros({4, 6});
  Tensor view = a.view({2, 2, 3}, 1, {12, 6, 1});
  EXPECT_TRUE(view.is_view());
  EXPECT_EQ(view.count(), 12);
  EXPECT_EQ(view.step(1), 6);
  EXPECT_EQ(view.step(-1), 1);
  static_cast<float*>(view.mutable_first())[view.step(0) + view.step(1)] = 5;  // (1, 1, 0)
  EXPECT_EQ(a.data<float>()[3 * 6 + 1], 5);
  EXPECT_EQ(view.slice(1, 2).first(), a.data<float>() + 2 * 6 + 1);
  EXPECT_THROW(view.raw(), std::invalid_argument);
  EXPECT_THROW(view.mutable_raw(), std::invalid_argument);
  EXPECT_THROW(view.data<float>(), std::invalid_argument);
  EXPECT_THROW(view.reshape({12}), std::invalid_argument);
  EXPECT_THROW(view.clone(), std::invalid_argument);
  EXPECT_THROW(view.to(DType::kF64), std::invalid_argument);
  EXPECT_EQ(view.view({2, 1}, 6, {12, 1}).first(), a.data<float>() + 6 + 1);  // of a view
  EXPECT_THROW(view.view({2, 4}, 6, {12, 1}), std::invalid_argument);  // beyond its last element
  EXPECT_FALSE(a.is_view());
  EXPECT_EQ(a.step(0), 6);
}

TEST(Tensor, ScaledOnesAreConvertedWithTheirFactorsAndNeverWithout) {
  Tensor whole({2, 3}, DType::kI8), rows({2, 1}), columns({1, 3});
  for (int64_t i = 0; i < 6; ++i) whole.data<int8_t>()[i] = static_cast<int8_t>(5 * i - 12);
  for (int64_t i = 0; i < 2; ++i) rows.data<float>()[i] = 0.5f + static_cast<float>(i);
  for (int64_t i = 0; i < 3; ++i) columns.data<float>()[i] = 2 - static_cast<float>(i);
  for (const Tensor& factors : {rows, columns}) {
    const Tensor scaled = Tensor::scaled(whole, factors);
    EXPECT_EQ(scaled.has_row_factors(), factors.size(0) == 2);
    for (const Tensor& wide : {scaled.to(DType::kF64), scaled.clone().to(DType::kF64)})
      for (int64_t i = 0; i < 6; ++i)
        EXPECT_EQ(wide.data<double>()[i],
                  (5.0 * static_cast<double>(i) - 12) *
                      factors.data<float>()[factors.size(0) == 2 ? i / 3 : i % 3]);
    EXPECT_THROW(scaled.reshape({3, 2}), std::invalid_argument);
    EXPECT_THROW(scaled.slice(0, 1), std::invalid_argument);
    EXPECT_THROW(scaled.view({2}, 0, {3}), std::invalid_argument);
    EXPECT_THROW(scaled.repeat(2), std::invalid_argument);
    EXPECT_THROW(whole.assign(scaled), std::invalid_argument);
  }
  EXPECT_THROW(whole.to(DType::kF32), std::invalid_argument);
  EXPECT_THROW(Tensor::scaled(whole, Tensor::zeros({2, 3})), std::invalid_argument);
  EXPECT_THROW(Tensor::scaled(Tensor({2, 3}), rows), std::invalid_argument);
}

TEST(Tensor, RefusesViewsThatLeaveIt) {
  const Tensor a = Tensor::zeros({4, 6});
  EXPECT_EQ(a.view({2, 4}, 0, {20, 1}).count(), 8);
  EXPECT_THROW(a.view({2, 4}, 0, {21, 1}), std::invalid_argument);
  EXPECT_THROW(a.view({2, 4}, -1, {1, 1}), std::invalid_argument);
  EXPECT_THROW(a.view({2, 4}, 12, {-1, 1}), std::invalid_argument);
  EXPECT_THROW(a.view({2, 4}, 0, {1}), std::invalid_argument);
}

TEST(Tensor, RefusesTheWrongType) {
  EXPECT_THROW(Tensor({2}).data<double>(), std::invalid_argument);
}

TEST(Tensor, RefusesShapesThatOverflow) {
  EXPECT_THROW(Tensor({int64_t{1} << 40, int64_t{1} << 40}), std::invalid_argument);
  EXPECT_THROW(Tensor({int64_t{1} << 61}, DType::kF64), std::invalid_argument);
  EXPECT_THROW(Tensor({-1}), std::invalid_argument);
}

TEST(DType, BFloat16RoundsToNearestEven) {
  EXPECT_EQ(to_bfloat16(1.0f).bits, 0x3f80);
  EXPECT_EQ(to_bfloat16(std::bit_cast<float>(0x3f808000u)).bits, 0x3f80);  // tie, even below
  EXPECT_EQ(to_bfloat16(std::bit_cast<float>(0x3f818000u)).bits, 0x3f82);  // tie, even above
  EXPECT_TRUE(std::isnan(to_float(to_bfloat16(std::bit_cast<float>(0x7f800001u)))));
}

TEST(DType, Float16CoversItsRange) {
  EXPECT_EQ(to_float(Float16{0x3c00}), 1.0f);
  EXPECT_EQ(to_float(Float16{0xc000}), -2.0f);
  EXPECT_EQ(to_float(Float16{0x7bff}), 65504.0f);
  EXPECT_EQ(to_float(Float16{0x0001}), 0x1p-24f);
  EXPECT_TRUE(std::isinf(to_float(Float16{0x7c00})));
  EXPECT_TRUE(std::isnan(to_float(Float16{0x7e00})));
  EXPECT_TRUE(std::signbit(to_float(Float16{0x8000})));
}

}  // namespace
}  // namespace dofla
