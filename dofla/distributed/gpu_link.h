// What Group needs of NCCL, for ranks that have a GPU each: nccl.cc has it, no_nccl.cc refuses
// where dofla is built without.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "dofla/distributed/transport.h"

namespace dofla::transport {

bool can_link_gpus();

// What one of the ranks makes and all must have.
std::string new_link_name();

// The way from this rank's GPU to those of the others.
class GpuLink {
 public:
  // All ranks, each with a GPU that no other has.
  GpuLink(std::string_view name, const Device& gpu, int rank, int size);
  ~GpuLink();
  GpuLink(const GpuLink&) = delete;
  GpuLink& operator=(const GpuLink&) = delete;

  // Messages on this GPU, some of which may go to this rank itself. They take their turn in its
  // stream: what was given to it before is what they send, and what is given to it later sees what
  // they brought. Nothing waits for them.
  void exchange(std::span<const Message> sent, std::span<const Message> received) const;

 private:
  struct Communicator;
  std::unique_ptr<Communicator> communicator_;
};

}  // namespace dofla::transport
