#include "tests/support/process.h"

#include <csignal>
#include <cstdlib>
#include <stdexcept>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dofla/core/file.h"
#include "tests/support/fixtures.h"

namespace dofla::test {
namespace {

void redirect(int descriptor, const std::string& path, int flags) {
  const int file = ::open(path.c_str(), flags, 0600);
  if (file < 0 || ::dup2(file, descriptor) < 0) ::_exit(127);
}

// Waits until the child has ended, and meanwhile for the moment of the signal.
int wait_for(pid_t child, const ProcessSignal& signal) {
  bool sent = signal.number == 0;
  while (true) {
    int status = 0;
    const pid_t ended = ::waitpid(child, &status, sent ? 0 : WNOHANG);
    if (ended == child) return status;
    if (ended < 0) throw std::runtime_error("waitpid failed");
    if (signal.ready()) {
      ::kill(child, signal.number);
      sent = true;
    } else {
      ::usleep(1000);
    }
  }
}

}  // namespace

ProcessResult run_process(const std::vector<std::string>& command,
                          const std::map<std::string, std::string>& environment,
                          const std::string& out_file, const ProcessSignal& signal) {
  const ScratchFolder scratch;
  const std::string out = out_file.empty() ? (scratch.path() / "out").string() : out_file;
  const std::string err = (scratch.path() / "err").string();
  std::vector<char*> arguments;
  for (const std::string& argument : command)
    arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);

  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error("fork failed");
  if (child == 0) {
    redirect(STDIN_FILENO, "/dev/null", O_RDONLY);
    redirect(STDOUT_FILENO, out, O_WRONLY | O_CREAT | O_TRUNC);
    redirect(STDERR_FILENO, err, O_WRONLY | O_CREAT | O_TRUNC);
    // A shell that runs the tests in the background lets them ignore these, and a child would too.
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) std::signal(number, SIG_DFL);
    for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
    ::execv(arguments[0], arguments.data());
    ::_exit(127);
  }
  const int status = wait_for(child, signal);
  return {.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status),
          .out = out_file.empty() ? read_text(out) : "",
          .err = read_text(err)};
}

}  // namespace dofla::test
