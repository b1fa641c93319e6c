#include "dofla/core/device_cuda.h"

#include <algorithm>

#include "dofla/core/error.h"

namespace dofla {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

// Sizes are rounded so that a block fits the next tensor of about its size.
size_t rounded(size_t bytes) {
  constexpr size_t kSmallest = 512, kCoarseFrom = size_t{1} << 20, kCoarse = size_t{1} << 18;
  const size_t step = bytes >= kCoarseFrom ? kCoarse : kSmallest;
  return std::max(kSmallest, (bytes + step - 1) / step * step);
}

}  // namespace

void cuda_check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  const char* reason = cudaGetErrorString(status);
  switch (status) {
    case cudaErrorMemoryAllocation: {
      size_t free = 0, total = 0;
      cudaGetLastError();
      cudaMemGetInfo(&free, &total);
      fail(
          "{}: the GPU's memory is full ({:.1f} of {:.1f} GiB free); take a smaller batch or "
          "shorter windows, compute activations again instead of keeping them, or use the CPU",
          what, static_cast<double>(free) / kGiB, static_cast<double>(total) / kGiB);
    }
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
      fail("no GPU found ({}); use the CPU", reason);
    case cudaErrorInsufficientDriver:
      fail(
          "the GPU's driver is older than this build of dofla needs ({}); update the driver or "
          "use the CPU",
          reason);
    case cudaErrorNoKernelImageForDevice:
      fail(
          "this build of dofla has no code for this GPU; build with "
          "-DCMAKE_CUDA_ARCHITECTURES set for it, or use the CPU");
    case cudaErrorInvalidValue:
      fail("{}: this GPU cannot do it at these sizes; use the CPU", what);
    default:
      fail(
          "{}: the GPU stopped working ({}: {}); if a training run was cut short, it can be "
          "resumed "
          "from its last checkpoint",
          what, cudaGetErrorName(status), reason);
  }
}

void cublas_check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    fail("{}: cuBLASLt failed ({})", what, cublasLtGetStatusString(status));
}

CudaContext::CudaContext(int number) {
  cuda_check(cudaSetDevice(number), "starting the GPU");
  cuda_check(cudaGetDeviceProperties(&properties_, number), "starting the GPU");
  cuda_check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "starting the GPU");
  cublas_check(cublasLtCreate(&cublas_), "starting the GPU");
  cuda_check(cudaMalloc(&cublas_workspace_, kCublasWorkspace), "starting the GPU");
}

CudaContext::~CudaContext() {
  cudaStreamSynchronize(stream_);
  for (const auto& [size, block] : free_) cudaFree(block);
  cudaFree(cublas_workspace_);
  cublasLtDestroy(cublas_);
  cudaStreamDestroy(stream_);
}

std::string CudaContext::description() const {
  return fmt::format("{}, {:.0f} GiB", properties_.name,
                     static_cast<double>(properties_.totalGlobalMem) / kGiB);
}

std::string CudaContext::unique_name() const {
  return {properties_.uuid.bytes, sizeof(properties_.uuid.bytes)};
}

void* CudaContext::allocate(size_t bytes) {
  const size_t size = rounded(bytes);
  const std::lock_guard lock(mutex_);
  // Up to an eighth of a block may be left unused: better than another block.
  const auto found = free_.lower_bound(size);
  if (found != free_.end() && found->first <= size + size / 8) {
    void* block = found->second;
    in_use_.emplace(block, found->first);
    free_.erase(found);
    return block;
  }
  void* block = nullptr;
  cudaError_t status = cudaMalloc(&block, size);
  if (status == cudaErrorMemoryAllocation && recorded == nullptr) {  // a recording cannot wait
    cudaGetLastError();
    return_unused_blocks();
    status = cudaMalloc(&block, size);
  }
  cuda_check(status, "allocating memory");
  in_use_.emplace(block, size);
  return block;
}

void CudaContext::release(void* block) {
  const std::lock_guard lock(mutex_);
  const auto found = in_use_.find(block);
  free_.emplace(found->second, block);
  in_use_.erase(found);
}

size_t CudaContext::available_bytes() {
  size_t available = 0, total = 0;
  cuda_check(cudaMemGetInfo(&available, &total), "asking for the GPU's memory");
  return available + bytes_kept();
}

size_t CudaContext::bytes_in_use() {
  const std::lock_guard lock(mutex_);
  size_t bytes = 0;
  for (const auto& [block, size] : in_use_) bytes += size;
  return bytes;
}

size_t CudaContext::bytes_kept() {
  const std::lock_guard lock(mutex_);
  size_t bytes = 0;
  for (const auto& [size, block] : free_) bytes += size;
  return bytes;
}

void CudaContext::return_unused_blocks() {
  cudaStreamSynchronize(stream_);
  for (const auto& [size, block] : free_) cudaFree(block);
  free_.clear();
}

Device Device::cuda(int turn) {
  int devices = 0;
  cuda_check(cudaGetDeviceCount(&devices), "looking for a GPU");
  return Device(std::make_shared<CudaContext>(devices > 0 ? turn % devices : 0));
}

std::string Device::description() const {
  return is_cuda() ? context_->description() : "CPU";
}

std::string Device::unique_name() const {
  return is_cuda() ? context_->unique_name() : "";
}

void Device::synchronize() const {
  if (is_cuda()) cuda_check(cudaStreamSynchronize(context_->stream()), "waiting for the GPU");
}

std::shared_ptr<void> allocate_on(const Device& gpu, int64_t bytes) {
  // The handle keeps the context alive as long as its memory is.
  std::shared_ptr<void> memory(gpu.context().allocate(static_cast<size_t>(bytes)),
                               [gpu](void* block) { gpu.context().release(block); });
  if (gpu.context().recorded != nullptr) gpu.context().recorded->push_back(memory);
  return memory;
}

int64_t bytes_in_use(const Device& gpu) {
  return static_cast<int64_t>(gpu.context().bytes_in_use());
}

int64_t bytes_held(const Device& gpu) {
  return static_cast<int64_t>(gpu.context().bytes_in_use() + gpu.context().bytes_kept());
}

void copy_bytes(const Device& from_device, const void* from, const Device& to_device, void* to,
                int64_t bytes) {
  const Device& gpu = from_device.is_cuda() ? from_device : to_device;
  const cudaStream_t stream = gpu.context().stream();
  const size_t size = static_cast<size_t>(bytes);
  cuda_check(cudaMemcpyAsync(to, from, size, cudaMemcpyDefault, stream), "copying memory");
  if (!to_device.is_cuda()) gpu.synchronize();
}

void zero_bytes(const Device& gpu, void* data, int64_t bytes) {
  cuda_check(cudaMemsetAsync(data, 0, static_cast<size_t>(bytes), gpu.context().stream()),
             "clearing memory");
}

}  // namespace dofla
