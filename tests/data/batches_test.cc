#include "dofla/data/batches.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dofla/data/token_writer.h"
#include "tests/support/fixtures.h"

namespace dofla {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class Batches : public testing::Test {
 protected:
  fs::path write(const std::string& name, std::string_view contents) {
    write_whole(scratch.path() / name, contents);
    return scratch.path() / name;
  }

  template <class Body>
  static std::string error_of(const Body& body) {
    try {
      body();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

  test::ScratchFolder scratch;
};

TEST_F(Batches, ReadsIds) {
  const SequenceLimits limits = {.vocabulary = 10, .shortest = 1, .longest = 4};
  EXPECT_THAT(read_ids(write("a.json", "[[1, 2], [9]]"), limits),
              ElementsAre(ElementsAre(1, 2), ElementsAre(9)));
  EXPECT_THAT(read_ids(write("a.json", "[0, 9]"), limits), ElementsAre(ElementsAre(0, 9)));
}

TEST_F(Batches, RefusesBadIds) {
  const SequenceLimits limits = {.vocabulary = 10, .shortest = 2, .longest = 4};
  const auto error = [&](std::string_view json) {
    return error_of([&] { read_ids(write("a.json", json), limits); });
  };
  for (const char* bad : {"", "[", "5", "{}", "null", "[]", "\"a\""})
    EXPECT_THAT(error(bad), HasSubstr("a.json: ")) << bad;
  for (const char* bad : {"10", "-1", "1.5", "true", "\"a\"", "null", "18446744073709551615",
                          "-9223372036854775808", "1e300", "[1]"})
    EXPECT_THAT(error(fmt::format("[[0, 1], [1, {}]]", bad)),
                HasSubstr("a.json: sequence 1: token 1: expected an id from 0 to 9"))
        << bad;
  EXPECT_THAT(error("[[0, 1], 5]"), HasSubstr("sequence 1: expected an array"));
  EXPECT_THAT(error("[[1]]"), HasSubstr("sequence 0: 1 tokens, fewer than the 2"));
  EXPECT_THAT(error("[[1, 1, 1, 1, 1]]"), HasSubstr("5 tokens, more than the 4"));
}

std::vector<TokenIds> numbered_windows(int64_t count) {
  std::vector<TokenIds> windows;
  for (int64_t i = 0; i < count; ++i) windows.push_back({i, 1000 + i});
  return windows;
}

TokenIds first_column(const Tensor& batch) {
  TokenIds ids;
  for (int64_t i = 0; i < batch.size(0); ++i) {
    ids.push_back(batch.data<int64_t>()[2 * i]);
    EXPECT_EQ(batch.data<int64_t>()[2 * i + 1], 1000 + ids.back());
  }
  return ids;
}

TEST_F(Batches, IdsToTrainOnHaveOneLength) {
  const fs::path file = write("a.json", "[[1, 2], [3, 4], [5], [6, 7]]");
  SequenceLimits limits = {.vocabulary = 10, .shortest = 1, .longest = 3};
  EXPECT_EQ(read_ids(file, limits).size(), 4u);
  limits.same_length = true;
  EXPECT_THAT(error_of([&] { read_ids(file, limits); }),
              HasSubstr("a.json: sequence 2: 1 tokens, the first has 2"));
}

TEST_F(Batches, WindowsReadAtOnceAreItsRows) {
  const Tensor batch = to_batch({{1, 2, 3}, {4, 5, 6}});
  EXPECT_EQ(batch.dtype(), DType::kI64);
  ASSERT_EQ(batch.shape(), (Shape{2, 3}));
  EXPECT_THAT(std::span(batch.data<int64_t>(), 6), ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST_F(Batches, WindowsReadAtOnceHaveOneLength) {
  EXPECT_THROW(to_batch({}), std::invalid_argument);
  EXPECT_THROW(to_batch({{1, 2}, {3}}), std::invalid_argument);
  EXPECT_THROW(to_batch({{1, 2}, {3, 4, 5}}), std::invalid_argument);
}

TEST(ShuffledBatches, EveryPassSeesEveryWindowOnce) {
  ShuffledBatches batches(numbered_windows(12), 4, 7);
  std::vector<TokenIds> passes;
  for (int64_t pass = 0; pass < 3; ++pass) {
    TokenIds seen;
    for (int64_t step = 3 * pass; step < 3 * pass + 3; ++step) {
      const TokenIds batch = first_column(batches.at(step));
      seen.insert(seen.end(), batch.begin(), batch.end());
    }
    passes.push_back(seen);
    EXPECT_EQ(std::set<int64_t>(seen.begin(), seen.end()).size(), 12u);
  }
  EXPECT_NE(passes[0], passes[1]);
  EXPECT_NE(passes[1], passes[2]);
}

TEST(ShuffledBatches, ABatchDependsOnSeedAndStepAlone) {
  const auto windows = numbered_windows(10);
  ShuffledBatches whole(windows, 4, 7);  // batches of 4 straddle passes of 10
  std::vector<TokenIds> all;
  for (int64_t step = 0; step < 20; ++step) all.push_back(first_column(whole.at(step)));
  for (const int64_t step : {19, 0, 2, 7, 7, 12}) {
    ShuffledBatches resumed(windows, 4, 7);
    EXPECT_EQ(first_column(resumed.at(step)), all[static_cast<size_t>(step)]);
    EXPECT_EQ(first_column(whole.at(step)), all[static_cast<size_t>(step)]);
  }
  ShuffledBatches other(windows, 4, 8);
  EXPECT_NE(first_column(other.at(0)), all[0]);
}

// No two places meet, whatever the size: every number comes exactly once.
TEST(ShuffledPlace, IsAPermutationOfAnySize) {
  for (const int64_t count : {1, 2, 3, 4, 5, 7, 16, 17, 63, 64, 65, 1000, 4097, 65'537})
    for (const int64_t pass : {0, 1}) {
      std::vector<char> seen(static_cast<size_t>(count));
      int64_t same_place = 0;
      for (int64_t place = 0; place < count; ++place) {
        const int64_t number = shuffled_place(place, count, 3, pass);
        ASSERT_TRUE(number >= 0 && number < count);
        EXPECT_EQ(seen[static_cast<size_t>(number)]++, 0) << count;
        same_place += number == place;
      }
      // Of a random permutation one number stays where it is, on average and ± 1.
      if (count >= 1000) {
        EXPECT_LT(same_place, 8) << count;
      }
    }
  EXPECT_THROW(shuffled_place(5, 5, 0, 0), std::invalid_argument);
}

TEST(ShuffledPlace, SeedsAndPassesHaveOrdersOfTheirOwn) {
  constexpr int64_t kCount = int64_t{1} << 40;
  std::set<int64_t> found;
  for (uint64_t seed = 0; seed < 10; ++seed)
    for (int64_t pass = 0; pass < 10; ++pass)
      found.insert(shuffled_place(12345, kCount, seed, pass));
  EXPECT_EQ(found.size(), 100u);
}

// Neighbours must not stay together: the mean distance of two that follow each other is a third of
// the count, ± its standard error.
TEST(ShuffledPlace, NeighboursAreTornApart) {
  constexpr int64_t kCount = 1'000'003, kPairs = 4000;
  double sum = 0;
  for (int64_t i = 0; i < kPairs; ++i) {
    const int64_t place = i * 249;
    sum += std::abs(static_cast<double>(shuffled_place(place, kCount, 1, 0) -
                                        shuffled_place(place + 1, kCount, 1, 0)));
  }
  const double mean = sum / kPairs / kCount;
  EXPECT_NEAR(mean, 1.0 / 3, 5 * std::sqrt(1.0 / 18 / kPairs));
}

// Short lists keep the order that they always had; long ones need no list.
TEST(ShuffledPasses, ALongListTakesNoMemory) {
  ShuffledPasses few(1000, 5);
  const std::vector<int64_t> second = shuffled_order(1000, 5, 1);
  for (int64_t i = 0; i < 1000; ++i) EXPECT_EQ(few.at(1000 + i), second[static_cast<size_t>(i)]);
  constexpr int64_t kMany = int64_t{1} << 50;
  ShuffledPasses many(kMany, 5);
  for (const int64_t place : {int64_t{0}, int64_t{77}, kMany + 3})
    EXPECT_EQ(many.at(place), shuffled_place(place % kMany, kMany, 5, place / kMany));
  ShuffledPasses longest(ShuffledPasses::kLongestList, 5);
  EXPECT_EQ(longest.at(9), shuffled_order(ShuffledPasses::kLongestList, 5, 0)[9]);
  EXPECT_THROW(ShuffledPasses(0, 5), std::invalid_argument);
}

// Out of a file, where the next batch is read ahead, batches are those out of memory, in whatever
// order they are asked for.
TEST(ShuffledBatches, AreTheSameFromAFile) {
  const auto windows = numbered_windows(10);
  TokenWriter writer(2000, {}, 0);
  for (const TokenIds& window : windows) writer.append(window);
  const WindowSet in_file(writer.store(), 2);
  ASSERT_TRUE(in_file.in_file());
  ShuffledBatches from_memory(windows, 4, 7), from_file(in_file, 4, 7);
  for (const int64_t step : {0, 1, 2, 2, 9, 3, 4, 5})
    EXPECT_EQ(first_column(from_file.at(step)), first_column(from_memory.at(step))) << step;
}

TEST(ShuffledBatches, RefusesWhatItCannotBatch) {
  EXPECT_THROW(ShuffledBatches({}, 1, 0), std::invalid_argument);
  EXPECT_THROW(ShuffledBatches({{1, 2}, {1}}, 1, 0), std::invalid_argument);
  EXPECT_THROW(ShuffledBatches({{1, 2}}, 0, 0), std::invalid_argument);
  EXPECT_THROW(ShuffledBatches({{1, 2}}, 1, 0).at(-1), std::invalid_argument);
}

}  // namespace
}  // namespace dofla
