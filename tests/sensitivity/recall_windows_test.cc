#include "dofla/sensitivity/recall_windows.h"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

namespace dofla {
namespace {

// Every token another one, so that each tells where it came from.
TokenIds counting(int64_t length) {
  TokenIds ids(static_cast<size_t>(length));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

TEST(RecallWindow, BeginsAsTheTextDoesAndEndsWithPassagesOfIt) {
  for (const int64_t length : {8, 9, 15, 16, 48, 64, 100, 512, 1024, 2048}) {
    const int64_t repeated = repeated_at_end(length), before = length - repeated;
    EXPECT_GE(repeated, length / 16) << length;
    EXPECT_LE(repeated, length / 4) << length;
    const TokenIds ids = recall_window(counting(length), 3);
    ASSERT_EQ(std::ssize(ids), length);
    for (int64_t i = 0; i < before; ++i) EXPECT_EQ(ids[static_cast<size_t>(i)], i);
    for (int64_t i = before; i < length; ++i) EXPECT_LT(ids[static_cast<size_t>(i)], before);
  }
}

TEST(RecallWindow, AsksForAllPartsOfTheTextInPassages) {
  constexpr int64_t kLength = 1024;
  const int64_t repeated = repeated_at_end(kLength), before = kLength - repeated;
  const TokenIds ids = recall_window(counting(kLength), 5);
  std::vector<int64_t> begins;
  int64_t together = 0;  // tokens that follow the one that they followed before
  for (int64_t i = before; i < kLength; ++i) {
    const int64_t id = ids[static_cast<size_t>(i)];
    if (i > before && id == ids[static_cast<size_t>(i - 1)] + 1)
      ++together;
    else
      begins.push_back(id);
  }
  EXPECT_EQ(begins.size(), 6U);
  EXPECT_EQ(together + std::ssize(begins), repeated);
  EXPECT_FALSE(std::is_sorted(begins.begin(), begins.end()));
  std::sort(begins.begin(), begins.end());
  for (size_t part = 0; part < begins.size(); ++part)
    EXPECT_EQ(begins[part] * 6 / before, static_cast<int64_t>(part));
}

TEST(RecallWindow, FollowsFromTheSeed) {
  EXPECT_EQ(recall_window(counting(512), 1), recall_window(counting(512), 1));
  EXPECT_NE(recall_window(counting(512), 1), recall_window(counting(512), 2));
}

TEST(RecallWindow, RefusesWhatIsTooShort) {
  EXPECT_THROW(repeated_at_end(7), std::invalid_argument);
  EXPECT_THROW(recall_window(counting(7), 0), std::invalid_argument);
}

}  // namespace
}  // namespace dofla
