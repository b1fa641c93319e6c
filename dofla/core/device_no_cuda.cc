// Linked instead of device_cuda.cc where dofla is built without CUDA.
#include "dofla/core/device.h"
#include "dofla/core/device_recording.h"
#include "dofla/core/error.h"

namespace dofla {
namespace {

[[noreturn]] void refuse() {
  fail(
      "this build of dofla has no GPU support; build it with `make build CUDA=1`, or use "
      "the CPU");
}

}  // namespace

Device Device::cuda(int) {
  refuse();
}

std::string Device::description() const {
  return "CPU";
}

std::string Device::unique_name() const {
  return "";
}

void Device::synchronize() const {}

std::shared_ptr<void> allocate_on(const Device&, int64_t) {
  refuse();
}

int64_t bytes_in_use(const Device&) {
  refuse();
}

int64_t bytes_held(const Device&) {
  refuse();
}

void copy_bytes(const Device&, const void*, const Device&, void*, int64_t) {
  refuse();
}

void zero_bytes(const Device&, void*, int64_t) {
  refuse();
}

struct Recording::Graph {};

Recording::Recording(const Device&, const std::function<void()>&) {
  refuse();
}

Recording::~Recording() = default;

void Recording::replay() {
  refuse();
}

}  // namespace dofla
