// Whether loops should run on a team of threads or on the calling thread alone.
//
// At its end a loop waits for the last thread of its team. On a machine that is busy with other
// programs a thread that has microseconds of work may wait milliseconds for a core, and the loop
// with it: a small model, whose token is made of dozens of such loops, then runs hundreds of times
// slower than on one thread. So every short loop is timed, and what the team gained or lost
// against one thread is added up. Once it has lost, loops stay on the calling thread for twenty
// times as long as what was lost, and then the team is tried again: whatever the load, no more than
// about a twentieth of the time goes to trying.
#pragma once

#include <algorithm>
#include <chrono>

namespace dofla {

class TeamWatch {
 public:
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;

  // A loop that keeps the calling thread busy for longer is worth a team in any case: the other
  // threads get their cores meanwhile.
  static constexpr Seconds kLongLoop = std::chrono::milliseconds(1);

  bool team_pays(Clock::time_point now) const { return now >= alone_until_; }

  // A loop has run on the team. The calling thread did `done` of its `shares` in the time `busy`
  // and then waited `waited` for the others. One thread would have taken busy · shares / done; a
  // calling thread that lost its core itself gives no better estimate than a fair share.
  void add(Clock::time_point now, int threads, double done, double shares, Seconds busy,
           Seconds waited) {
    if (busy > kLongLoop) return;
    const double times = done > 0 ? std::min<double>(shares / done, threads) : threads;
    balance_ = std::min(balance_ + busy * (times - 1) - waited, kMostBalance);
    if (balance_ >= Seconds(0)) return;
    alone_until_ = now + std::chrono::duration_cast<Clock::duration>(kPause * (kTrial - balance_));
    balance_ = kTrial;
  }

 private:
  static constexpr double kPause = 20;
  static constexpr Seconds kTrial = std::chrono::microseconds(500);  // what a trial may lose
  static constexpr Seconds kMostBalance = std::chrono::milliseconds(20);

  Seconds balance_ = kTrial;
  Clock::time_point alone_until_;
};

}  // namespace dofla
