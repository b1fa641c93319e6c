// What ranks say to each other. A program of its own, which mpirun starts as often as it likes; by
// itself it is a process alone.
#include <cstdlib>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dofla/core/error.h"
#include "dofla/distributed/agreement.h"
#include "dofla/distributed/placement.h"
#include "tests/distributed/ranks.h"

namespace dofla {

Group group;

namespace {

TEST(GroupOnRanks, IsAsLargeAsItWasStarted) {
  const char* started = std::getenv("OMPI_COMM_WORLD_SIZE");
  EXPECT_EQ(group.size(), started == nullptr ? 1 : std::atoi(started));
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  EXPECT_EQ(group.rank(), rank == nullptr ? 0 : std::atoi(rank));
  const char* local = std::getenv("OMPI_COMM_WORLD_LOCAL_RANK");
  EXPECT_EQ(group.local_rank(), local == nullptr ? 0 : std::atoi(local));
  EXPECT_EQ(group.alone(), group.size() == 1);
  EXPECT_EQ(group.is_first(), group.rank() == 0);
}

TEST(GroupOnRanks, SharesAreAllThereIsOnce) {
  for (const int64_t count : {0, 1, 2, 3, 5, 64, 1001}) {
    int64_t at = 0;
    for (int rank = 0; rank < group.size(); ++rank) {
      const Share share = group.share(count, rank);
      EXPECT_EQ(share.begin, at);
      EXPECT_GE(share.count(), count / group.size());
      EXPECT_LE(share.count(), count / group.size() + 1);
      at = share.end;
    }
    EXPECT_EQ(at, count);
    EXPECT_EQ(group.share(count).begin, group.share(count, group.rank()).begin);
  }
}

TEST(GroupOnRanks, SumsAreInTheOrderOfTheRanks) {
  for (const int64_t count : {0, 1, 2, 5, 1000, (1 << 22) + 3}) {
    std::vector<double> found = numbers<double>(count, group.rank());
    group.sum(found);
    EXPECT_EQ(found, sum_in_order<double>(count));
  }
}

TEST(GroupOnRanks, TensorsAreSummedAsIfTheyWereOne) {
  std::vector<Tensor> tensors;
  const std::vector<int64_t> sizes = {3, 0, (1 << 22) - 1, 5, (1 << 22) + 7};
  for (const int64_t size : sizes) {
    tensors.emplace_back(Shape{size});
    std::ranges::copy(numbers<float>(size, group.rank()), tensors.back().data<float>());
  }
  group.sum(tensors);
  for (size_t i = 0; i < sizes.size(); ++i) {
    const float* found = tensors[i].data<float>();
    EXPECT_EQ(std::vector<float>(found, found + sizes[i]), sum_in_order<float>(sizes[i]));
  }
}

TEST(GroupOnRanks, BytesAreGatheredByRank) {
  const std::string mine(static_cast<size_t>(group.rank() * 3), static_cast<char>(group.rank()));
  const std::vector<std::string> all = group.gather(mine);
  ASSERT_EQ(std::ssize(all), group.size());
  for (int rank = 0; rank < group.size(); ++rank)
    EXPECT_EQ(all[static_cast<size_t>(rank)],
              std::string(static_cast<size_t>(rank * 3), static_cast<char>(rank)));
}

TEST(GroupOnRanks, AnyOfThemIsEnough) {
  EXPECT_FALSE(group.any(false));
  EXPECT_TRUE(group.any(true));
  for (int rank = 0; rank < group.size(); ++rank) EXPECT_TRUE(group.any(rank == group.rank()));
}

TEST(GroupOnRanks, RowsAndTurnsComeInTheirOrder) {
  const int64_t count = 5;
  std::vector<std::vector<double>> rows(count), expected;
  std::vector<int64_t> turns, in_order;
  const Share own = group.share(count);
  for (int64_t i = 0; i < count; ++i) {
    expected.emplace_back(static_cast<size_t>(i), 0.5 + static_cast<double>(i));
    if (i >= own.begin && i < own.end) rows[static_cast<size_t>(i)] = expected.back();
    in_order.push_back(i);
    if (i % group.size() == group.rank()) turns.push_back(i);
  }
  gather_rows(group, rows);
  EXPECT_EQ(rows, expected);
  EXPECT_EQ(gather_turns(group, turns), in_order);
}

TEST(GroupOnRanks, WhoDiffersIsNamedOnAll) {
  require_same(group, "version", "1.2.3");
  if (group.alone()) return;
  const int last = group.size() - 1;
  const bool differs = group.rank() == last;
  try {
    require_same(group, {{"batch", 8}, {"version", differs ? "1.2.4" : "1.2.3"}});
    FAIL() << "nobody noticed";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr(fmt::format("rank {} differs", last)));
    EXPECT_THAT(error.what(), testing::HasSubstr("its version: \"1.2.4\" and \"1.2.3\""));
  }
  // A setting that one of them does not have at all.
  EXPECT_THROW(require_same(group, differs ? Json{{"a", 1}} : Json{{"a", 1}, {"b", 2}}), Error);
}

TEST(GroupOnRanks, WhatOneThrowsAllThrow) {
  const int last = group.size() - 1;
  EXPECT_NO_THROW(together<Error>(group, [] {}));
  try {
    together<Error>(group, [&] {
      if (group.rank() == last) fail("a defect");
    });
    FAIL() << "nobody threw";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "a defect");
  }
}

TEST(GroupOnRanks, StopTogetherIfOneIsAsked) {
  const std::atomic<bool> stop = group.rank() == group.size() - 1;
  int64_t told = 0;
  const Progress progress([&](const ProgressUpdate& update) { told = update.done; }, &stop);
  EXPECT_THROW(report(group, progress, {"train", 3, 5, "steps"}), Cancelled);
  EXPECT_EQ(told, 3);
  EXPECT_NO_THROW(report(group, Progress(), {"train", 3, 5, "steps"}));
  // Each at its own pace shows the work of all, and does not leave the others.
  const Progress pace = at_own_pace(group, progress);
  pace.tell({"evaluate", 1, 2, "tokens"});
  EXPECT_EQ(told, group.alone() ? 1 : 2);
  EXPECT_EQ(pace.stop_asked(), group.alone() && stop);
}

TEST(GroupOnRanks, CoresAreShared) {
  const int threads = threads_of_rank(group);
  EXPECT_GE(threads, 1);
  std::vector<double> all = {static_cast<double>(threads)};
  group.sum(all);
  EXPECT_LE(all.front(), std::max<double>(group.size(), sysconf(_SC_NPROCESSORS_ONLN)));
}

}  // namespace

int run_tests() {
  group = Group::launched();
  const int result = RUN_ALL_TESTS();
  if (result != 0) group.abort(result);
  group.leave();
  return 0;
}

}  // namespace dofla

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  return dofla::run_tests();
}
