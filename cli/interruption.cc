#include "cli/interruption.h"

#include <csignal>
#include <string_view>

#include <unistd.h>

namespace dofla::cli {
namespace {

// A signal handler has no other way to speak with the program.
std::atomic<bool> command_stops_itself = false;
std::atomic<bool> stop = false;
std::atomic<int> signal_number = SIGINT;
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free,
              "a signal handler may use no others");

void say(std::string_view text) {
  [[maybe_unused]] const ssize_t ignored = ::write(STDERR_FILENO, text.data(), text.size());
}

void handle(int number) {
  const bool on_terminal = ::isatty(STDERR_FILENO) == 1;
  signal_number = number;
  if (command_stops_itself && !stop.exchange(true)) {
    if (on_terminal) say("\nfinishing the step; a second interruption leaves at once\n");
    return;
  }
  if (on_terminal) say("\n");
  ::_exit(interrupted_exit_code());
}

}  // namespace

void handle_signals() {
  for (const int number : {SIGINT, SIGTERM, SIGHUP})
    if (std::signal(number, handle) == SIG_IGN) std::signal(number, SIG_IGN);
}

int interrupted_exit_code() {
  return 128 + signal_number;
}

StopFlag::StopFlag() {
  command_stops_itself = true;
}

StopFlag::~StopFlag() {
  command_stops_itself = false;
}

const std::atomic<bool>* StopFlag::get() const {
  return &stop;
}

}  // namespace dofla::cli
