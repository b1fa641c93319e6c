// Programmatic dependent launch: a kernel starts before its predecessor in the stream has ended, so
// that its launch latency and its loads of constant data (weights) overlap with the predecessor.
// GPUs older than Hopper launch in the ordinary way. A chain of such kernels begins with an
// ordinary launch.
#pragma once

#include <cstddef>
#include <utility>

#include <cuda_runtime.h>

namespace dofla::cuda {

// Lets the next kernel's blocks start once all blocks of this one have called it.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Returns when everything launched before this kernel has ended and its results can be seen. Each
// kernel of a chain calls it before it reads what others write and before it writes at all: one
// that has ended then means that all before it have.
__device__ __forceinline__ void wait_for_inputs() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

inline bool kernels_can_overlap() {
  int device = 0, major = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         major >= 9;
}

template <class... Parameters, class... Arguments>
cudaError_t launch_overlapped(void (*kernel)(Parameters...), dim3 grid, int threads,
                              size_t shared_bytes, cudaStream_t stream, Arguments&&... arguments) {
  const cudaError_t status = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
  if (status != cudaSuccess) return status;
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t configuration = {};
  configuration.gridDim = grid;
  configuration.blockDim = dim3(static_cast<unsigned>(threads));
  configuration.dynamicSmemBytes = shared_bytes;
  configuration.stream = stream;
  configuration.attrs = &early;
  configuration.numAttrs = kernels_can_overlap() ? 1 : 0;
  return cudaLaunchKernelEx(&configuration, kernel, std::forward<Arguments>(arguments)...);
}

}  // namespace dofla::cuda
