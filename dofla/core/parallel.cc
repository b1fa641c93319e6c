#include "dofla/core/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>

#include <time.h>

#include "dofla/core/team_watch.h"

namespace dofla {
namespace {

// A loop while it runs: its threads take one share after the other.
class Loop {
 public:
  Loop(int64_t count, int64_t share, LoopRange range, const void* body)
      : count_(count), share_(share), range_(range), body_(body) {}

  int64_t shares() const { return (count_ + share_ - 1) / share_; }

  // False if none is left.
  bool take_one() {
    const int64_t begin = share_ * next_.fetch_add(1, std::memory_order_relaxed);
    if (begin >= count_) return false;
    try {
      range_(body_, begin, std::min(begin + share_, count_));
    } catch (...) {
      next_ = shares();
#pragma omp critical(dofla_loop)
      if (!error_) error_ = std::current_exception();
    }
    return true;
  }

  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  const int64_t count_, share_;
  const LoopRange range_;
  const void* const body_;
  std::atomic<int64_t> next_ = 0;
  std::exception_ptr error_;
};

using Clock = TeamWatch::Clock;

void run_on_team(Loop& loop, int threads, TeamWatch& watch, Clock::time_point start) {
  double done = 0;  // by this thread
  Clock::time_point own_start = start, own_end = start;
#pragma omp parallel
  {
    if (omp_get_thread_num() == 0) {
      own_start = Clock::now();
      while (loop.take_one()) ++done;
      own_end = Clock::now();
    } else {
      while (loop.take_one()) continue;
    }
  }
  const Clock::time_point end = Clock::now();
  // Before the loop, too, this thread waits for those that are not back from the loop before.
  watch.add(end, threads, done, static_cast<double>(loop.shares()), own_end - own_start,
            (own_start - start) + (end - own_end));
}

TeamWatch::Seconds processor_time() {  // of this thread
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

// False if the loop turned out to be a long one and is not over yet. The time of day does not tell:
// on a busy machine most of it may have gone by while this thread waited for a core. Processor time
// does, but takes a system call: it is asked for once the other has become suspicious.
bool run_alone(Loop& loop, Clock::time_point start) {
  const SingleThreaded alone;  // libraries that are called from the loop, too
  do {
    if (!loop.take_one()) return true;
  } while (Clock::now() - start < TeamWatch::kLongLoop);
  const TeamWatch::Seconds used = processor_time();
  while (processor_time() - used < TeamWatch::kLongLoop)
    if (!loop.take_one()) return true;
  return false;
}

}  // namespace

void end_team() {
  omp_pause_resource(omp_pause_soft, omp_get_initial_device());
}

void run_loop(int64_t count, int64_t share, LoopRange range, const void* body) {
  const int threads = thread_count();
  if (count <= share || threads == 1 || omp_in_parallel()) return range(body, 0, count);
  // Of the calling thread, as the number of threads is.
  thread_local TeamWatch watch;
  Loop loop(count, share, range, body);
  const Clock::time_point start = Clock::now();
  if (watch.team_pays(start))
    run_on_team(loop, threads, watch, start);
  else if (!run_alone(loop, start))
    run_on_team(loop, threads, watch, Clock::now());
  loop.rethrow();
}

}  // namespace dofla
