#include "dofla/core/parallel.h"

#include <atomic>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

#include "dofla/core/team_watch.h"

namespace dofla {
namespace {

using namespace std::chrono_literals;
using Seconds = TeamWatch::Seconds;

TEST(ParallelLoops, CallEveryIndexOnce) {
  const int before = thread_count();
  for (const int threads : {1, 2, 5})
    for (const int64_t count : {0, 1, 2, 7, 8, 9, 1000}) {
      omp_set_num_threads(threads);
      std::vector<std::atomic<int>> once(static_cast<size_t>(count)), rows(once.size());
      parallel_for(count, [&](int64_t i) { ++once[static_cast<size_t>(i)]; });
      parallel_rows(count, [&](int64_t i) { ++rows[static_cast<size_t>(i)]; });
      for (size_t i = 0; i < once.size(); ++i) {
        EXPECT_EQ(once[i], 1);
        EXPECT_EQ(rows[i], 1);
      }
      EXPECT_EQ(thread_count(), threads);
    }
  omp_set_num_threads(before);
}

TEST(ParallelLoops, AnExceptionEndsTheLoopAndIsThrownAgain) {
  const int before = thread_count();
  for (const int threads : {1, 2, 5}) {
    omp_set_num_threads(threads);
    std::atomic<int> calls = 0;
    const auto third_fails = [&](int64_t) {
      if (++calls == 3) throw std::runtime_error("third");
    };
    EXPECT_THROW(parallel_for(100000, third_fails), std::runtime_error);
    EXPECT_LT(calls, 100000);
    EXPECT_EQ(thread_count(), threads);
  }
  omp_set_num_threads(before);
}

TEST(ParallelLoops, LoopsInLoopsStayOnTheirThread) {
  std::vector<int64_t> sums(16);
  parallel_for(16, [&](int64_t i) {
    parallel_for(100, [&](int64_t j) { sums[static_cast<size_t>(i)] += j; });
  });
  for (const int64_t sum : sums) EXPECT_EQ(sum, 4950);
}

class Team : public testing::Test {
 protected:
  // A loop of 8 shares on two threads, of which the calling one did `done`.
  void run(double done, Seconds busy, Seconds waited) { watch.add(now, 2, done, 8, busy, waited); }

  TeamWatch::Clock::time_point now{1h};
  TeamWatch watch;
};

TEST_F(Team, IsUsedAsLongAsItGains) {
  for (int i = 0; i < 10000; ++i) run(4, 10us, 5us);  // 15 us in place of 20
  EXPECT_TRUE(watch.team_pays(now));
}

TEST_F(Team, IsGivenUpWhenItLosesForTwentyTimesTheLoss) {
  run(4, 10us, 10ms);
  EXPECT_FALSE(watch.team_pays(now));
  EXPECT_FALSE(watch.team_pays(now + 199ms));
  EXPECT_TRUE(watch.team_pays(now + 201ms));
  now += 201ms;
  run(4, 10us, 4ms);  // tried again
  EXPECT_FALSE(watch.team_pays(now + 79ms));
  EXPECT_TRUE(watch.team_pays(now + 81ms));
}

TEST_F(Team, SmallLossesAddUp) {
  int loops = 0;
  while (watch.team_pays(now)) {
    run(4, 10us, 12us);
    ASSERT_LT(++loops, 1000);
  }
  EXPECT_GT(loops, 100);
}

TEST_F(Team, AHiccupIsForgivenAfterMuchGain) {
  for (int i = 0; i < 10000; ++i) run(4, 10us, 1us);
  run(4, 10us, 10ms);
  EXPECT_TRUE(watch.team_pays(now));
  for (int i = 0; i < 10; ++i) run(4, 10us, 10ms);
  EXPECT_FALSE(watch.team_pays(now));
}

// The calling thread lost its core: the others did all the rest, but that is no gain of theirs.
TEST_F(Team, ALoopInWhichTheCallerLostItsCoreSaysNothing) {
  for (int i = 0; i < 100; ++i) run(1, 5ms, 1us);
  run(4, 10us, 1ms);
  EXPECT_FALSE(watch.team_pays(now));
}

TEST_F(Team, LongLoopsAreNotWatched) {
  for (int i = 0; i < 100; ++i) run(4, 2ms, 10ms);
  EXPECT_TRUE(watch.team_pays(now));
}

TEST(ParallelLoops, ATeamThatHasEndedIsFollowedByAnother) {
  for (int round = 0; round < 3; ++round) {
    std::atomic<int> calls = 0;
    parallel_for(100, [&](int64_t) { ++calls; });
    end_team();
    end_team();  // there is none
    EXPECT_EQ(calls, 100);
  }
}

}  // namespace
}  // namespace dofla
