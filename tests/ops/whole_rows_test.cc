#include "dofla/ops/cpu/whole_rows.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "dofla/core/random.h"
#include "dofla/ops/matmul.h"
#include "tests/support/random_values.h"
#include "tests/support/tolerance.h"

namespace dofla::cpu {
namespace {

TEST(RoundRow, IsHalfAStepAwayAtMost) {
  Random random(1);
  for (const int64_t count : {1, 2, 15, 16, 33, 100})
    for (const float size : {1e-30f, 1.0f, 3e30f}) {
      std::vector<float> x;
      for (int64_t i = 0; i < count; ++i) x.push_back(size * static_cast<float>(random.normal()));
      std::vector<int16_t> whole(static_cast<size_t>(count) + 1, 77);
      const double step = round_row(x.data(), count, whole.data());
      int most = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        EXPECT_NEAR(step * whole[i], x[i], 0.501 * step);
        most = std::max(most, std::abs(int{whole[i]}));
      }
      EXPECT_EQ(most, 32767);
      EXPECT_EQ(whole.back(), 77) << "what follows stays as it is";
    }
}

TEST(RoundRow, OfZerosAndOfWhatIsNotFinite) {
  for (const int64_t at : {0, 20, 36}) {  // in a vector, and after the last one
    std::vector<float> x(37, 0.0f);
    std::vector<int16_t> whole(x.size(), 77);
    EXPECT_EQ(round_row(x.data(), 37, whole.data()), 0.0f);
    EXPECT_EQ(whole, std::vector<int16_t>(37, 0));
    x[static_cast<size_t>(at)] = std::numeric_limits<float>::denorm_min();
    EXPECT_EQ(round_row(x.data(), 37, whole.data()), 0.0f);
    for (const float bad : {NAN, -NAN, INFINITY, -INFINITY}) {
      x[static_cast<size_t>(at)] = bad;
      EXPECT_TRUE(std::isnan(round_row(x.data(), 37, whole.data())));
    }
  }
}

Linear filled(int64_t inputs, int64_t outputs, bool input_major, int8_t value) {
  Tensor whole(input_major ? Shape{inputs, outputs} : Shape{outputs, inputs}, DType::kI8);
  std::fill_n(whole.data<int8_t>(), whole.count(), value);
  Tensor factors(input_major ? Shape{1, outputs} : Shape{outputs, 1});
  std::fill_n(factors.data<float>(), outputs, 0.5f);
  return {.weight = Tensor::scaled(whole, factors), .input_major = input_major, .bias = {}};
}

// The largest weights and inputs there are, all of one sign: no sum of 32 bits overflows.
TEST(WholeRows, TheLargestSumsAreExact) {
  for (const int64_t inputs : {511, 512, 513, 1030, 8200, 17000})
    for (const bool input_major : {false, true})
      for (const int8_t value : {int8_t{127}, int8_t{-128}})
        for (const int64_t rows : {1, 5}) {
          const Linear linear = filled(inputs, 35, input_major, value);
          Tensor x({rows, inputs});
          std::fill_n(x.data<float>(), x.count(), 3.0f);
          const Tensor y = matmul(x, linear);
          const double expected = 0.5 * value * 3.0 * static_cast<double>(inputs);
          for (int64_t i = 0; i < y.count(); ++i)
            ASSERT_NEAR(y.data<float>()[i] / expected, 1, 1e-6)
                << inputs << " inputs, first " << input_major << ", " << int{value};
        }
}

TEST(WholeRows, ARowThatIsNotFiniteSpoilsNoOther) {
  for (const bool input_major : {false, true}) {
    const Linear linear = filled(40, 33, input_major, 3);
    Tensor x({6, 40});
    std::fill_n(x.data<float>(), x.count(), 1.0f);
    x.data<float>()[2 * 40 + 39] = INFINITY;
    const Tensor y = matmul(x, linear);
    for (int64_t r = 0; r < 6; ++r)
      for (int64_t n = 0; n < 33; ++n)
        EXPECT_EQ(std::isfinite(y.data<float>()[r * 33 + n]), r != 2) << r;
  }
}

}  // namespace
}  // namespace dofla::cpu
