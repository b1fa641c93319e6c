// Engines on one device take turns, a token at a time: what they have to compute runs on one
// thread, in the order in which it was asked for. With a thread each they would also have a team of
// OpenMP threads each, more in all than there are cores, and these then sleep after every loop
// (core/parallel.h).
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <thread>

namespace dofla {

class Turn {
 public:
  Turn() : thread_([this] { serve(); }) {}
  ~Turn() {
    {
      const std::lock_guard held(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  // Returns when it has run, and throws what it threw.
  void run(std::function<void()> work) {
    std::packaged_task<void()> task(std::move(work));
    std::future<void> done = task.get_future();
    {
      const std::lock_guard held(mutex_);
      waiting_.push_back(std::move(task));
    }
    changed_.notify_all();
    done.get();
  }

 private:
  void serve() {
    for (std::unique_lock held(mutex_);;) {
      changed_.wait(held, [&] { return stopping_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      std::packaged_task<void()> task = std::move(waiting_.front());
      waiting_.pop_front();
      held.unlock();
      task();
      held.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::packaged_task<void()>> waiting_;  // the oldest first
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace dofla
