#include "cli/interruption.h"

#include <csignal>
#include <string>
#include <string_view>
#include <thread>

#include <pthread.h>
#include <unistd.h>

namespace dofla::cli {
namespace {

// What the thread that waits for signals and the command tell each other.
std::atomic<bool> command_stops_itself = false;
std::atomic<bool> stop = false;
std::atomic<const char*> remark_on_stop = "";
std::atomic<int> signal_number = SIGINT;

void say(std::string_view text) {
  [[maybe_unused]] const ssize_t ignored = ::write(STDERR_FILENO, text.data(), text.size());
}

void handle(int number) {
  const bool on_terminal = ::isatty(STDERR_FILENO) == 1;
  signal_number = number;
  if (command_stops_itself && !stop.exchange(true)) {
    const std::string remark = remark_on_stop.load();
    if (on_terminal && !remark.empty()) say("\n" + remark + "\n");
    return;
  }
  if (on_terminal) say("\n");
  ::_exit(interrupted_exit_code());
}

}  // namespace

// A thread of its own waits for the signals, and no handler runs on the stack of another. With a
// handler, one stop in five ended in a corrupted heap, found within oneDNN's sgemm; with the thread
// none of forty did. Why is not proven: code that keeps data below the stack pointer would explain
// it.
void handle_signals() {
  sigset_t awaited;
  sigemptyset(&awaited);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) {
    struct sigaction before = {};
    ::sigaction(number, nullptr, &before);
    if (before.sa_handler != SIG_IGN) sigaddset(&awaited, number);
  }
  pthread_sigmask(SIG_BLOCK, &awaited, nullptr);  // threads that begin later have the same mask
  std::thread([awaited] {
    for (int number = 0;;)
      if (sigwait(&awaited, &number) == 0) handle(number);
  }).detach();
}

int interrupted_exit_code() {
  return 128 + signal_number;
}

StopFlag::StopFlag(const char* remark) {
  remark_on_stop = remark;
  stop = false;
  command_stops_itself = true;
}

StopFlag::~StopFlag() {
  command_stops_itself = false;
}

const std::atomic<bool>* StopFlag::get() const {
  return &stop;
}

}  // namespace dofla::cli
