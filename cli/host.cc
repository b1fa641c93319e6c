#include "cli/host.h"

#include <utility>

namespace dofla::cli {
namespace {

thread_local const Host* host_of_thread = nullptr;

}  // namespace

Hosted::Hosted(const Host& host) : before_(std::exchange(host_of_thread, &host)) {}

Hosted::~Hosted() {
  host_of_thread = before_;
}

const Host* current_host() {
  return host_of_thread;
}

}  // namespace dofla::cli
