// Products of a warpgroup (four warps, sm_90a): the left operand in registers, the right one in
// shared memory, running in the background.
#pragma once

#include "dofla/ops/cuda/swizzled_tile.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

namespace dofla::cuda {

// A right operand that begins at this byte of the shared memory, within a swizzled tile: eight rows
// are 1024 bytes, and tiles begin at multiples of that.
__device__ __forceinline__ uint64_t right_operand(uint32_t address) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62, kEightRows = 1024 >> 4;
  return kSwizzle128 | kEightRows << 32 | uint64_t{1} << 16 | (address & 0x3ffff) >> 4;
}

// sums [64, 64] (+)= a [64, 16] · b [16, 64]; warp w of the group holds rows 16 w to 16 w + 15 of a
// and of the sums as mma_bf16 has them, the sums in [first, first + 8). b is stored [n, k], or
// transposed [k, n]. Registers of a and of the sums must not be accessed before the wait.
template <bool kTransposed, int kCount>
__device__ __forceinline__ void warpgroup_multiply(float (&sums)[kCount][4], int first,
                                                   const uint32_t (&a)[4], uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, add, 1, 1, %38;\n}"
      : "+f"(sums[first + 0][0]), "+f"(sums[first + 0][1]), "+f"(sums[first + 0][2]),
        "+f"(sums[first + 0][3]), "+f"(sums[first + 1][0]), "+f"(sums[first + 1][1]),
        "+f"(sums[first + 1][2]), "+f"(sums[first + 1][3]), "+f"(sums[first + 2][0]),
        "+f"(sums[first + 2][1]), "+f"(sums[first + 2][2]), "+f"(sums[first + 2][3]),
        "+f"(sums[first + 3][0]), "+f"(sums[first + 3][1]), "+f"(sums[first + 3][2]),
        "+f"(sums[first + 3][3]), "+f"(sums[first + 4][0]), "+f"(sums[first + 4][1]),
        "+f"(sums[first + 4][2]), "+f"(sums[first + 4][3]), "+f"(sums[first + 5][0]),
        "+f"(sums[first + 5][1]), "+f"(sums[first + 5][2]), "+f"(sums[first + 5][3]),
        "+f"(sums[first + 6][0]), "+f"(sums[first + 6][1]), "+f"(sums[first + 6][2]),
        "+f"(sums[first + 6][3]), "+f"(sums[first + 7][0]), "+f"(sums[first + 7][1]),
        "+f"(sums[first + 7][2]), "+f"(sums[first + 7][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)),
        "n"(static_cast<int>(kTransposed)));
}

// The same for half as many columns: sums [64, 32] (+)= a [64, 16] · b [16, 32], b stored [n, k].
__device__ __forceinline__ void warpgroup_multiply_32(float (&sums)[4][4], const uint32_t (&a)[4],
                                                      uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %21, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
      "{%16, %17, %18, %19}, %20, add, 1, 1, 0;\n}"
      : "+f"(sums[0][0]), "+f"(sums[0][1]), "+f"(sums[0][2]), "+f"(sums[0][3]), "+f"(sums[1][0]),
        "+f"(sums[1][1]), "+f"(sums[1][2]), "+f"(sums[1][3]), "+f"(sums[2][0]), "+f"(sums[2][1]),
        "+f"(sums[2][2]), "+f"(sums[2][3]), "+f"(sums[3][0]), "+f"(sums[3][1]), "+f"(sums[3][2]),
        "+f"(sums[3][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
}

// Puts a fragment where load_matrices_transposed would find it.
__device__ __forceinline__ void store_matrices_transposed(const uint32_t (&from)[4], uint32_t row) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
               "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
               : "memory");
}

// Changes how many registers every thread of this warpgroup has: a multiple of 8. Those that one
// gives up others can take, who wait for them.
template <int kCount>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

// Makes this thread's ordinary writes to shared memory visible to warpgroup products; after a
// barrier, those of all threads.
__device__ __forceinline__ void show_to_warpgroups() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Required before products whose registers were written by other instructions.
__device__ __forceinline__ void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most `kInFlight` committed groups of products are still running.
template <int kInFlight>
__device__ __forceinline__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kInFlight) : "memory");
}

// Keeps the compiler from moving accesses to the sums across this point.
template <int kCount>
__device__ __forceinline__ void pin(float (&sums)[kCount][4]) {
#pragma unroll
  for (int n = 0; n < kCount; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(sums[n][i])::"memory");
  }
}

}  // namespace dofla::cuda

#endif
