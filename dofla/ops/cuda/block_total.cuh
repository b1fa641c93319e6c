// Sums over a block in double.
#pragma once

namespace dofla::cuda {

// The sum of x over a block of kThreads, a power of two, in every thread.
template <int kThreads>
__device__ double block_total(double x) {
  __shared__ double parts[kThreads];
  __syncthreads();  // an earlier sum may still be read
  parts[threadIdx.x] = x;
  for (int step = kThreads / 2; step > 0; step /= 2) {
    __syncthreads();
    if (threadIdx.x < step) parts[threadIdx.x] += parts[threadIdx.x + step];
  }
  __syncthreads();
  return parts[0];
}

}  // namespace dofla::cuda
