// Loops over the cores, on the one OpenMP runtime that oneDNN and OpenBLAS use too.
#pragma once

#include <cstdint>
#include <exception>

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

// Calls body(i) for every i in [0, count), each exactly once, in no particular order. The first
// exception thrown by a body is thrown again here once all are done.
template <class Body>
void parallel_for(int64_t count, const Body& body) {
  std::exception_ptr error;
#pragma omp parallel for schedule(dynamic, 1) if (count > 1)
  for (int64_t i = 0; i < count; ++i) {
    try {
      body(i);
    } catch (...) {
#pragma omp critical(dofla_parallel_for)
      if (!error) error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

// The same for many cheap bodies that cannot throw: each core takes one contiguous share.
template <class Body>
void parallel_rows(int64_t count, const Body& body) {
#pragma omp parallel for schedule(static) if (count > 8)
  for (int64_t i = 0; i < count; ++i) body(i);
}

}  // namespace dofla
