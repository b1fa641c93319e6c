// A GPU as the CUDA operations see it: one stream, the library handles that work on it, and memory.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include <cublasLt.h>
#include <cuda_runtime.h>

#include "dofla/core/device.h"

namespace dofla {

// Throws Error with what the user can do about it; `what` was being done.
void cuda_check(cudaError_t status, const char* what);
void cublas_check(cublasStatus_t status, const char* what);

class CudaContext {
 public:
  explicit CudaContext(int number);  // of the GPU
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  cudaStream_t stream() const { return stream_; }
  cublasLtHandle_t cublas() const { return cublas_; }
  std::string description() const;
  std::string unique_name() const;

  // Scratch for cuBLASLt, used by one product at a time.
  void* cublas_workspace() const { return cublas_workspace_; }
  static constexpr size_t kCublasWorkspace = size_t{64} << 20;

  // How each kind of matrix product is done best, found once: see ops/cuda/cublas_lt.h.
  std::map<std::vector<int64_t>, cublasLtMatmulAlgo_t> matmul_algorithms;

  // Freed blocks are kept and handed out again: after the first step of a loop no step asks the
  // driver for memory. Safe without waiting because all work is ordered by the one stream.
  void* allocate(size_t bytes);
  void release(void* block);
  size_t available_bytes();  // that the driver or the kept blocks could give
  size_t bytes_in_use();
  size_t bytes_kept();  // in freed blocks

  // While a recording is made: every block handed out is noted here, to live as long as it does.
  std::vector<std::shared_ptr<void>>* recorded = nullptr;

 private:
  void return_unused_blocks();

  cudaDeviceProp properties_ = {};
  cudaStream_t stream_ = nullptr;
  cublasLtHandle_t cublas_ = nullptr;
  void* cublas_workspace_ = nullptr;

  std::mutex mutex_;
  std::multimap<size_t, void*> free_;         // blocks by size
  std::unordered_map<void*, size_t> in_use_;  // their sizes
};

}  // namespace dofla
