// The only file that knows NCCL.
#include <cstring>

#include <nccl.h>

#include "dofla/core/device_cuda.h"
#include "dofla/core/error.h"
#include "dofla/distributed/gpu_link.h"

namespace dofla::transport {
namespace {

void nccl_check(ncclResult_t status, ncclComm_t communicator, const char* what) {
  if (status == ncclSuccess) return;
  fail(
      "{}: NCCL failed ({}: {}); NCCL_DEBUG=WARN says more, and DOFLA_NCCL=0 exchanges through the "
      "memory of the CPU instead; a training run goes on from its last checkpoint with --resume",
      what, ncclGetErrorString(status), ncclGetLastError(communicator));
}

}  // namespace

bool can_link_gpus() {
  return true;
}

std::string new_link_name() {
  ncclUniqueId id;
  nccl_check(ncclGetUniqueId(&id), nullptr, "linking GPUs");
  return {id.internal, sizeof(id.internal)};
}

// Keeps the GPU, whose stream may still have work of the communicator.
struct GpuLink::Communicator {
  Device gpu;
  ncclComm_t handle = nullptr;
};

GpuLink::GpuLink(std::string_view name, const Device& gpu, int rank, int size)
    : communicator_(new Communicator{.gpu = gpu}) {
  ncclUniqueId id;
  require(name.size() == sizeof(id.internal), "linking GPUs: a name of {} bytes", name.size());
  std::memcpy(id.internal, name.data(), name.size());
  nccl_check(ncclCommInitRank(&communicator_->handle, size, id, rank), nullptr, "linking GPUs");
}

GpuLink::~GpuLink() {
  // An error would change nothing any more.
  cudaStreamSynchronize(communicator_->gpu.context().stream());
  ncclCommDestroy(communicator_->handle);
}

void GpuLink::exchange(std::span<const Message> sent, std::span<const Message> received) const {
  constexpr const char* kWhat = "exchanging tensors between GPUs";
  const ncclComm_t communicator = communicator_->handle;
  const cudaStream_t stream = communicator_->gpu.context().stream();
  const auto check = [&](ncclResult_t status) { nccl_check(status, communicator, kWhat); };
  // Errors of the network show here, at the next exchange.
  ncclResult_t earlier = ncclSuccess;
  check(ncclCommGetAsyncError(communicator, &earlier));
  check(earlier);
  check(ncclGroupStart());
  for (const auto& [rank, tensor] : sent)
    check(ncclSend(tensor.raw(), static_cast<size_t>(tensor.bytes()), ncclInt8, rank, communicator,
                   stream));
  for (auto [rank, tensor] : received)
    check(ncclRecv(tensor.mutable_raw(), static_cast<size_t>(tensor.bytes()), ncclInt8, rank,
                   communicator, stream));
  check(ncclGroupEnd());
}

}  // namespace dofla::transport
