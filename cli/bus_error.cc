#include "cli/bus_error.h"

#include <csignal>
#include <cstring>

#include <unistd.h>

#include "dofla/core/mapped_file.h"

namespace dofla::cli {
namespace {

// Only calls that are safe in a signal handler.
void say(const char* text) {
  [[maybe_unused]] const ssize_t ignored = ::write(STDERR_FILENO, text, std::strlen(text));
}

void leave(int, siginfo_t* info, void*) {
  const char* file = mapped_file_at(info->si_addr);
  say("dofla: ");
  say(file != nullptr ? file : "memory");
  say(file != nullptr ? ": became shorter while it was in use, or cannot be read; run again\n"
                      : ": cannot be read (bus error)\n");
  ::_exit(1);
}

}  // namespace

void explain_bus_errors() {
  struct sigaction action = {};
  action.sa_sigaction = leave;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace dofla::cli
