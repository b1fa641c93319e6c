#include "dofla/ops/rows.h"

#include <gtest/gtest.h>

#include "tests/support/random_values.h"

namespace dofla {
namespace {

TEST(CopyRows, TouchesOnlyTheRowsItIsTold) {
  Random random(1);
  const int64_t width = 5;
  const Tensor from = test::normal_tensor({6, width}, random);
  const Tensor before = test::normal_tensor({4, width}, random);
  Tensor to = before.clone();
  copy_rows(from, {{5, 0}, {2, 3}, {5, 1}}, to);
  EXPECT_TRUE(test::same_bits(to.slice(0, 1), from.slice(5, 6)));
  EXPECT_TRUE(test::same_bits(to.slice(1, 2), from.slice(5, 6)));
  EXPECT_TRUE(test::same_bits(to.slice(2, 3), before.slice(2, 3)));
  EXPECT_TRUE(test::same_bits(to.slice(3, 4), from.slice(2, 3)));
}

TEST(CopyRows, RefusesRowsThatAreNotThere) {
  const Tensor from = Tensor::zeros({6, 5});
  Tensor to = Tensor::zeros({4, 5}), narrow = Tensor::zeros({4, 3});
  EXPECT_THROW(copy_rows(from, {{6, 0}}, to), std::invalid_argument);
  EXPECT_THROW(copy_rows(from, {{0, 4}}, to), std::invalid_argument);
  EXPECT_THROW(copy_rows(from, {{-1, 0}}, to), std::invalid_argument);
  EXPECT_THROW(copy_rows(from, {{0, 0}}, narrow), std::invalid_argument);
}

}  // namespace
}  // namespace dofla
