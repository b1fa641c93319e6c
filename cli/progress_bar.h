// Draws the library's progress on standard error: a bar with rate and remaining time on a terminal,
// a plain line every ten seconds elsewhere, nothing at all for work that ends within two seconds.
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
  ProgressBar();
  ~ProgressBar();  // wipes the bar off the terminal
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  Progress progress();  // valid as long as this object

 private:
  using Clock = std::chrono::steady_clock;

  void update(const ProgressUpdate& update);
  void wipe();

  bool terminal_;
  bool drawn_ = false;
  std::string stage_;
  Clock::time_point start_;
  Clock::time_point next_;  // draw nothing before
};

}  // namespace dofla::cli
