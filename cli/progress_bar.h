// Draws the library's progress on standard error: a bar with rate and remaining time on a terminal,
// elsewhere a plain line every ten seconds and every fifty steps of training. Work that ends within
// two seconds shows nothing else. Training shows its loss.
#pragma once

#include <chrono>
#include <string>

#include "dofla/core/progress.h"

namespace dofla::cli {

// "evaluate [=====>    ]  45%  330k of 730k tokens  18.2k/s  0:21 left", cut to `columns`; without
// the bar itself when `columns` is 0.
std::string progress_line(const ProgressUpdate& update, double seconds, int columns);

class ProgressBar {
 public:
  // The flag is handed on with the progress: it asks the work to stop.
  explicit ProgressBar(const std::atomic<bool>* stop = nullptr);
  ~ProgressBar();  // wipes the bar off the terminal
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  Progress progress();  // valid as long as this object

 private:
  using Clock = std::chrono::steady_clock;

  void update(const ProgressUpdate& update);
  void wipe();

  const std::atomic<bool>* stop_;
  bool terminal_;
  bool drawn_ = false;
  std::string stage_;
  Clock::time_point start_;
  Clock::time_point next_;  // draw nothing before
};

}  // namespace dofla::cli
