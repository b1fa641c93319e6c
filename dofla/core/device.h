// Where a tensor's memory lies and its operations run: the CPU, or a GPU together with the stream
// that orders its work. Everything given to one stream runs in the order it was given, and nothing
// waits for it until results are copied to the CPU.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "dofla/core/names.h"

namespace dofla {

// What a user may ask for; kAuto is a GPU if there is one that works.
enum class DeviceChoice { kCpu, kCuda, kAuto };

template <>
struct Names<DeviceChoice> {
  static constexpr std::string_view kWhat = "device";
  static constexpr std::array kAll = {Name{DeviceChoice::kCpu, "cpu"},
                                      Name{DeviceChoice::kCuda, "cuda"},
                                      Name{DeviceChoice::kAuto, "auto"}};
};

class CudaContext;  // stream, memory and library handles of a GPU: dofla/core/device_cuda.h

class Device {
 public:
  Device() = default;  // the CPU

  // A GPU, with a stream of its own: the first, or the one that is its turn where several processes
  // count through them. Throws Error saying what to change where this build, the driver or the
  // machine has none.
  static Device cuda(int turn = 0);
  static Device chosen(DeviceChoice choice, int turn = 0);

  bool is_cuda() const { return context_ != nullptr; }
  CudaContext& context() const { return *context_; }  // of a GPU only
  std::string_view name() const {
    return dofla::name(is_cuda() ? DeviceChoice::kCuda : DeviceChoice::kCpu);
  }
  std::string description() const;  // "CPU", "NVIDIA H200, 139 GiB"
  // Bytes by which a GPU is told from all others, on any machine; none of the CPU.
  std::string unique_name() const;

  void synchronize() const;  // waits for all work given to the stream

  bool operator==(const Device&) const = default;

 private:
  explicit Device(std::shared_ptr<CudaContext> context) : context_(std::move(context)) {}

  std::shared_ptr<CudaContext> context_;
};

// Memory on a GPU, given back when the last handle goes. Contents are unspecified.
std::shared_ptr<void> allocate_on(const Device& gpu, int64_t bytes);

// Of all tensors that are alive there. Freed memory is kept for the next ones and does not count.
int64_t bytes_in_use(const Device& gpu);
// Taken from the driver: in use, or kept.
int64_t bytes_held(const Device& gpu);

// Copies between any two devices. To the CPU it returns when the bytes are there; from the CPU when
// `from` may be changed again.
void copy_bytes(const Device& from_device, const void* from, const Device& to_device, void* to,
                int64_t bytes);
void zero_bytes(const Device& gpu, void* data, int64_t bytes);

}  // namespace dofla
