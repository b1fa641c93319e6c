// A lock that is given in the order in which it was asked for: engines on one device take turns, a
// token at a time.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace dofla {

class Turn {
 public:
  void lock() {
    std::unique_lock held(mutex_);
    const uint64_t ticket = next_++;
    changed_.wait(held, [&] { return ticket == serving_; });
  }
  void unlock() {
    const std::lock_guard held(mutex_);
    ++serving_;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t next_ = 0, serving_ = 0;
};

}  // namespace dofla
