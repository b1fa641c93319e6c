// Linked instead of mpi.cc where dofla is built without MPI: there is one process.
#include <unistd.h>

#include "dofla/core/error.h"
#include "dofla/distributed/transport.h"

namespace dofla::transport {
namespace {

[[noreturn]] void refuse() {
  throw std::logic_error("this build of dofla has no MPI");
}

}  // namespace

bool available() {
  return false;
}

Place start(int processes) {
  fail(
      "{} processes were started together, but this build of dofla has no MPI: install "
      "libopenmpi-dev and openmpi-bin and build it again, or start one process",
      processes);
}

void finish() {}

void abort(int status) {
  ::_exit(status);
}

void sum(std::span<double>) {
  refuse();
}

std::vector<std::string> gather(std::string_view) {
  refuse();
}

bool any(bool) {
  refuse();
}

struct Exchange::Requests {};

Exchange::Exchange(std::span<const Message>, std::span<const Message>) {
  refuse();
}

Exchange::~Exchange() = default;
Exchange::Exchange(Exchange&&) noexcept = default;
Exchange& Exchange::operator=(Exchange&&) noexcept = default;

void Exchange::wait() {}

}  // namespace dofla::transport
