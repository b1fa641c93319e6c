// Copies between device memory and shared memory that run in the background, in one instruction for
// any number of bytes (sm_90 and later), and the barriers in shared memory that say when they are
// there.
#pragma once

#include <cuda.h>

#include "dofla/ops/cuda/tile_mma.cuh"

namespace dofla::cuda {

// A phase of the barrier ends when so many have arrived and all expected bytes are there.
__device__ __forceinline__ void init_barrier(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals));
}

// Between the initialisation and the barrier of the block that ends it.
__device__ __forceinline__ void show_barriers_to_copies() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Arrives, and says how many bytes will come.
__device__ __forceinline__ void arrive_expecting(uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Waits for the end of an even phase (0) or an odd one (1).
__device__ __forceinline__ void wait_for_phase(uint64_t* barrier, uint32_t odd) {
  asm volatile(
      "{\n"
      ".reg .pred ended;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared.b64 ended, [%0], %1;\n"
      "@!ended bra again;\n"
      "}" ::"r"(shared_address(barrier)),
      "r"(odd)
      : "memory");
}

// Addresses and bytes are multiples of 16.
__device__ __forceinline__ void bulk_copy(void* shared, const void* global, int bytes,
                                          uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(shared)),
      "l"(global), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

// The box that begins at element (column, row) of a head, as map describes it (tensor_map.h).
__device__ __forceinline__ void bulk_copy_box(uint32_t shared, const CUtensorMap& map, int column,
                                              int row, int head, int batch, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(shared),
      "l"(&map), "r"(column), "r"(row), "r"(head), "r"(batch), "r"(shared_address(barrier))
      : "memory");
}

// From shared to device memory, floats put there or added to those that are there: by the thread
// that then waits for them.
__device__ __forceinline__ void bulk_store(float* global, const void* shared, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global),
               "r"(shared_address(shared)), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void bulk_add(float* global, const void* shared, int bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(global),
      "r"(shared_address(shared)), "r"(bytes)
      : "memory");
}
__device__ __forceinline__ void commit_bulk_stores() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Until shared memory has been read, and until device memory has been written.
__device__ __forceinline__ void wait_for_bulk_reads() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ __forceinline__ void wait_for_bulk_stores() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

}  // namespace dofla::cuda
