// Places in shared memory that some warps fill, or the copy engine does, and others read.
#pragma once

#include "dofla/ops/cuda/bulk_copy.cuh"

namespace dofla::cuda {

// Filled and read in turn: at step n, place n % kPlaces.
template <int kPlaces>
struct BulkRing {
  uint64_t full[kPlaces], free[kPlaces];

  __device__ void init(int fillers, int readers) {
    for (int i = 0; i < kPlaces; ++i) {
      init_barrier(&full[i], fillers);
      init_barrier(&free[i], readers);
    }
  }
  __device__ __forceinline__ uint64_t* full_at(uint32_t step) { return &full[step % kPlaces]; }
  __device__ __forceinline__ uint64_t* free_at(uint32_t step) { return &free[step % kPlaces]; }
  __device__ __forceinline__ void wait_until_full(uint32_t step) {
    wait_for_phase(full_at(step), step / kPlaces % 2);
  }
  __device__ __forceinline__ void wait_until_free(uint32_t step) {
    wait_for_phase(free_at(step), step / kPlaces % 2 ^ 1);
  }
};

// One arrival for a warp, after all of its lanes.
__device__ __forceinline__ void arrive_as_warp(uint64_t* barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) arrive(barrier);
}

}  // namespace dofla::cuda
