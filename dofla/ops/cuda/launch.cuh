// Launches kernels that need more shared memory than the default of a block.
#pragma once

#include <cstddef>
#include <utility>

#include <cuda_runtime.h>

namespace dofla::cuda {

template <class... Parameters, class... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, int threads, size_t shared_bytes,
                   cudaStream_t stream, Arguments&&... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return cudaSuccess;
  const cudaError_t status = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
  if (status != cudaSuccess) return status;
  cudaLaunchConfig_t configuration = {};
  configuration.gridDim = grid;
  configuration.blockDim = dim3(static_cast<unsigned>(threads));
  configuration.dynamicSmemBytes = shared_bytes;
  configuration.stream = stream;
  return cudaLaunchKernelEx(&configuration, kernel, std::forward<Arguments>(arguments)...);
}

}  // namespace dofla::cuda
