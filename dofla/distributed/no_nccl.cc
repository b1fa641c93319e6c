// Linked instead of nccl.cc where dofla is built without NCCL. Nobody makes a link where there can
// be none.
#include <stdexcept>

#include "dofla/distributed/gpu_link.h"

namespace dofla::transport {

bool can_link_gpus() {
  return false;
}

std::string new_link_name() {
  throw std::logic_error("this build of dofla has no NCCL");
}

struct GpuLink::Communicator {};

GpuLink::GpuLink(std::string_view, const Device&, int, int) {
  new_link_name();
}

GpuLink::~GpuLink() = default;

void GpuLink::exchange(std::span<const Message>, std::span<const Message>) const {}

}  // namespace dofla::transport
