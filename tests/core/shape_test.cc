#include "dofla/core/shape.h"

#include <stdexcept>

#include <gtest/gtest.h>

namespace dofla {
namespace {

TEST(Shape, CountsElements) {
  EXPECT_EQ(element_count({}), 1);
  EXPECT_EQ(element_count({2, 3, 70}), 420);
  EXPECT_EQ(element_count({5, 0, 7}), 0);
  EXPECT_EQ(element_count({INT64_MAX}), INT64_MAX);
}

TEST(Shape, RefusesNegativeExtents) {
  EXPECT_THROW(element_count({2, -1}), std::invalid_argument);
  EXPECT_THROW(element_count({-1, -1}), std::invalid_argument);
  EXPECT_THROW(element_count({0, -1}), std::invalid_argument);
}

TEST(Shape, RefusesProductsThatOverflow) {
  EXPECT_THROW(element_count({int64_t{1} << 32, int64_t{1} << 31}), std::invalid_argument);
  EXPECT_THROW(element_count({INT64_MAX, 2}), std::invalid_argument);
  EXPECT_EQ(element_count({int64_t{1} << 32, int64_t{1} << 30}), int64_t{1} << 62);
}

TEST(Shape, PrintsAsAList) {
  EXPECT_EQ(to_string(Shape{}), "[]");
  EXPECT_EQ(to_string(Shape{2, 3, 70}), "[2, 3, 70]");
}

}  // namespace
}  // namespace dofla
