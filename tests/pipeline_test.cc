#include "dofla/pipeline.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace dofla {
namespace {

std::vector<TokenIds> windows(const std::vector<int64_t>& lengths) {
  std::vector<TokenIds> all;
  for (const int64_t length : lengths)
    all.emplace_back(static_cast<size_t>(length), static_cast<int64_t>(all.size()));
  return all;
}

// What a student is judged by is the end of the text, and none of it is trained on.
TEST(SplitHeldOut, TheLastWindowsAreNotTrainedOn) {
  const std::vector<TokenIds> all = windows({4, 4, 4, 4, 4});
  const DistillText text = split_held_out(all, 2);
  EXPECT_EQ(text.train, (std::vector<TokenIds>{all[0], all[1], all[2]}));
  EXPECT_EQ(text.held_out, (std::vector<TokenIds>{all[3], all[4]}));
}

TEST(SplitHeldOut, ShorterWindowsAreInNeitherPart) {
  const std::vector<TokenIds> all = windows({4, 4, 4, 3});
  const DistillText text = split_held_out(all, 1);
  EXPECT_EQ(text.train, (std::vector<TokenIds>{all[0], all[1]}));
  EXPECT_EQ(text.held_out, (std::vector<TokenIds>{all[2]}));
}

TEST(SplitHeldOut, SomethingMustBeLeftToTrainOn) {
  EXPECT_EQ(split_held_out(windows({4, 4, 4}), 2).train.size(), 1u);
  test::expect_error(
      [] {
        split_held_out(windows({4, 4, 4}), 3);
      },
      {"3 windows of 4 tokens", "3 are held out"});
}

}  // namespace
}  // namespace dofla
