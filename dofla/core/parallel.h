// Loops over the cores, on the one OpenMP runtime that oneDNN and OpenBLAS use too. Whether a loop
// is worth a team of threads is watched while the program runs: team_watch.h.
#pragma once

#include <cstdint>

#include <omp.h>

namespace dofla {

inline int thread_count() {
  return omp_get_max_threads();
}

// While it lives, OpenMP loops and OpenBLAS calls made by this thread stay on this thread: their
// results then do not depend on the number of threads.
class SingleThreaded {
 public:
  SingleThreaded() { omp_set_num_threads(1); }
  ~SingleThreaded() { omp_set_num_threads(before_); }
  SingleThreaded(const SingleThreaded&) = delete;
  SingleThreaded& operator=(const SingleThreaded&) = delete;

 private:
  const int before_ = thread_count();
};

// Ends the calling thread's team; its next loop starts another. For a thread that leaves the work
// to another one: the runtime lets the threads of a team wait for each other on their cores only as
// long as all teams together have no more threads than there are cores, and else puts them to sleep
// after every loop, which for a small model takes longer than the loop.
void end_team();

// What both loops below are: calls range(body, begin, end) for consecutive ranges of `share`
// indices that together are [0, count).
using LoopRange = void (*)(const void* body, int64_t begin, int64_t end);
void run_loop(int64_t count, int64_t share, LoopRange range, const void* body);

template <class Body>
LoopRange range_of(const Body&) {
  return [](const void* body, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) (*static_cast<const Body*>(body))(i);
  };
}

// Calls body(i) for every i in [0, count), each exactly once, in no particular order. After an
// exception no further ones begin, and the first exception is thrown again here once all have
// ended.
template <class Body>
void parallel_for(int64_t count, const Body& body) {
  run_loop(count, 1, range_of(body), &body);
}

// The same for many cheap bodies: each core takes them by contiguous shares.
template <class Body>
void parallel_rows(int64_t count, const Body& body) {
  constexpr int64_t kFew = 8;
  const int64_t shares = count > kFew ? 4 * thread_count() : 1;
  run_loop(count, (count + shares - 1) / shares, range_of(body), &body);
}

}  // namespace dofla
