// What the program does when SIGINT, SIGTERM, SIGHUP or SIGUSR1, which schedulers send before time
// is up, asks it to leave: at once, unless a command has something to finish first.
#pragma once

#include <atomic>

namespace dofla::cli {

// Called once, by main. A signal that the parent has the program ignore (nohup) stays ignored.
void handle_signals();

// 128 plus the number of the signal that came: what a shell makes of it.
int interrupted_exit_code();

// While one lives, the first signal only sets the flag, for the command to end in good order; a
// second one leaves at once. A command that has no StopFlag loses nothing by leaving at once: files
// appear whole or not at all.
class StopFlag {
 public:
  // `remark`: said on a terminal when that happens.
  explicit StopFlag(
      const char* remark = "finishing the step; a second interruption leaves at once");
  ~StopFlag();
  StopFlag(const StopFlag&) = delete;
  StopFlag& operator=(const StopFlag&) = delete;

  const std::atomic<bool>* get() const;
};

}  // namespace dofla::cli
