#include "dofla/dof/each_draw.h"

#include <atomic>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace dofla {
namespace {

DofTable three_layers_of_two_heads() {
  DofTable table;
  table.model.layers = 3;
  table.model.heads = 4;
  table.feature_heads = 2;
  return table;
}

TEST(EachDraw, ComesOnceAtItsPlaceInTheTable) {
  std::vector<HeadDraw> found(3 * 2 * 5);
  std::vector<int> times(found.size());
  std::vector<int64_t> told;
  const auto tell = [&](const ProgressUpdate& update) {
    EXPECT_EQ(update.stage, "count");
    EXPECT_EQ(update.total, std::ssize(found));
    told.push_back(update.done);
  };
  for_each_draw(three_layers_of_two_heads(), 5, "count", tell, {}, [&](const HeadDraw& one) {
    found.at(one.row) = one;
    ++times[one.row];
  });
  size_t row = 0;
  for (int64_t layer = 0; layer < 3; ++layer)
    for (int64_t head = 0; head < 2; ++head)
      for (int64_t draw = 0; draw < 5; ++draw, ++row) {
        EXPECT_EQ(times[row], 1);
        EXPECT_EQ(found[row].layer, layer);
        EXPECT_EQ(found[row].head, head);
        EXPECT_EQ(found[row].draw, draw);
      }
  ASSERT_EQ(told.size(), found.size());
  for (size_t i = 0; i < told.size(); ++i) EXPECT_EQ(told[i], static_cast<int64_t>(i) + 1);
}

TEST(EachDraw, AnErrorNamesLayerAndHead) {
  const auto work = [](const HeadDraw& one) {
    if (one.row == 11) fail("no samples");
  };
  test::expect_error([&] { for_each_draw(three_layers_of_two_heads(), 3, "count", {}, {}, work); },
                     {"layer 2, head 2: no samples"});
}

TEST(EachDraw, StopsWhenAsked) {
  const std::atomic<bool> stop = true;
  const Progress progress([](const ProgressUpdate&) {}, &stop);
  EXPECT_THROW(
      for_each_draw(three_layers_of_two_heads(), 1, "count", progress, {}, [](const HeadDraw&) {}),
      Cancelled);
}

}  // namespace
}  // namespace dofla
