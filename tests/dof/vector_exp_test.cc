#include "dofla/dof/vector_exp.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace dofla {
namespace {

TEST(VectorExp, AgreesWithTheLibraryToTwoUnitsInTheLastPlace) {
  for (const int64_t count : {1, 7, 8, 9, 100}) {
    std::vector<double> x, expected;
    for (int64_t i = 0; i < count; ++i) {
      x.push_back(-700 + 997.0 * static_cast<double>(i) / static_cast<double>(count));
      expected.push_back(std::exp(x.back() - 3));
    }
    exp_shifted(x.data(), count, 3);
    for (size_t i = 0; i < x.size(); ++i)
      EXPECT_NEAR(x[i], expected[i], 2 * std::numeric_limits<double>::epsilon() * expected[i]);
  }
}

TEST(VectorExp, UnderflowsToZero) {
  std::vector<double> x(9, -5000.0);
  exp_shifted(x.data(), 9, 4000);
  for (const double value : x) EXPECT_EQ(value, 0);
}

}  // namespace
}  // namespace dofla
