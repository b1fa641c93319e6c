#include "dofla/report/axis.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace dofla {
namespace {

std::vector<std::string> labels(Scale scale, double low, double high) {
  Extent extent{scale};
  extent.include(low);
  extent.include(high);
  std::vector<std::string> labels;
  for (const Tick& tick : Axis(extent, 0, 100).ticks()) labels.push_back(tick.label);
  return labels;
}

using Labels = std::vector<std::string>;

TEST(Axis, SpreadsTheExtentOverTheDrawing) {
  Extent extent{Scale::kLog10};
  extent.include(1);
  extent.include(100);
  const Axis axis(extent, 50, 250);
  EXPECT_DOUBLE_EQ(axis.at(1), 50);
  EXPECT_DOUBLE_EQ(axis.at(10), 150);
  EXPECT_DOUBLE_EQ(axis.at(100), 250);
}

TEST(Axis, TicksAreRoundNumbers) {
  EXPECT_EQ(labels(Scale::kLinear, 0, 191), (Labels{"0", "50", "100", "150"}));
  EXPECT_EQ(labels(Scale::kLinear, -1, 1), (Labels{"−1", "−0.5", "0", "0.5", "1"}));
  EXPECT_EQ(labels(Scale::kLog10, 0.5, 20000), (Labels{"1", "10", "100", "1000", "10⁴"}));
  EXPECT_EQ(labels(Scale::kLog10, 1.1, 173.8), (Labels{"2", "5", "10", "20", "50", "100"}));
  EXPECT_EQ(labels(Scale::kLog10, 2.6, 2.9),
            (Labels{"2.6", "2.65", "2.7", "2.75", "2.8", "2.85", "2.9"}));
  EXPECT_EQ(labels(Scale::kLog2, 0x1p-16, 1), (Labels{"2⁻¹⁶", "2⁻¹²", "2⁻⁸", "2⁻⁴", "2⁰"}));
}

TEST(Axis, HasNoPlaceForNumbersOffTheScale) {
  EXPECT_FALSE(has_place(Scale::kLinear, std::nan("")));
  EXPECT_FALSE(has_place(Scale::kLinear, std::numeric_limits<double>::max()));
  EXPECT_FALSE(has_place(Scale::kLog2, 0));
  EXPECT_FALSE(has_place(Scale::kLog10, -1));
  EXPECT_TRUE(has_place(Scale::kLinear, -1));
}

// Whatever it is given, an axis places its values inside the drawing and has few, finite ticks.
TEST(Axis, StandsExtremeExtents) {
  const double values[] = {0, 5e-324, 1e-300, 1e-30, 1, 1 + 1e-15, 1e15, 1e15 + 1, 1e200, -1e200};
  for (const Scale scale : {Scale::kLinear, Scale::kLog2, Scale::kLog10})
    for (const double a : values)
      for (const double b : values) {
        Extent extent{scale};
        extent.include(a);
        extent.include(b);
        const Axis axis(extent, 0, 100);
        const std::vector<Tick> ticks = axis.ticks();
        EXPECT_LE(ticks.size(), 9u) << a << " " << b;
        for (const Tick& tick : ticks) {
          EXPECT_GE(tick.position, -0.01) << a << " " << b;
          EXPECT_LE(tick.position, 100.01) << a << " " << b;
        }
        for (const double value : {a, b})
          if (has_place(scale, value)) {
            EXPECT_GE(axis.at(value), -0.01) << a << " " << b;
            EXPECT_LE(axis.at(value), 100.01) << a << " " << b;
          }
      }
}

}  // namespace
}  // namespace dofla
