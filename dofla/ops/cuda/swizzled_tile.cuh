// Tiles of 64 × 64 bf16 elements in shared memory, and tensor-core products of them. A row is 128
// bytes; its 16-byte chunks are permuted by the row's number, so that the eight rows that one
// access reads lie in different banks. A tile is named by its offset in the block's shared memory.
#pragma once

#include "dofla/ops/cuda/tile_mma.cuh"

namespace dofla::cuda {

constexpr uint32_t kSwizzledTileBytes = 64 * 64 * 2;

__device__ __forceinline__ uint32_t swizzled(int row, int chunk) {
  return static_cast<uint32_t>(row * 128 + ((chunk ^ (row & 7)) << 4));
}

// The byte that holds element (row, column) of a tile.
__device__ __forceinline__ unsigned char* tile_at(uint32_t tile, int row, int column) {
  return shared_memory() + tile + swizzled(row, column >> 3) + (column & 7) * 2;
}

// Which row a lane names when a warp loads a block of 16 × 16. Upright: a left operand as it is
// stored, or a right operand stored [k, n]. Sideways: a left operand stored [k, row], or a right
// operand stored [n, k].
__device__ __forceinline__ uint32_t upright() {
  const int lane = threadIdx.x % 32;
  return swizzled(lane % 16, lane / 16);
}
__device__ __forceinline__ uint32_t sideways() {
  const int lane = threadIdx.x % 32;
  return swizzled(lane % 8 + lane / 16 * 8, lane / 8 % 2);
}

// The block at (row, 16 · column16), row a multiple of 8: an address in shared memory, of 32 bits,
// because half of the work of a product of small tiles is to find its operands.
__device__ __forceinline__ uint32_t block_at(uint32_t tile, uint32_t lane_offset, int row,
                                             int column16) {
  return shared_address(shared_memory()) + tile + static_cast<uint32_t>(row * 128) +
         (lane_offset ^ static_cast<uint32_t>(column16 * 32));
}

__device__ __forceinline__ void load_matrices(uint32_t (&to)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}

__device__ __forceinline__ void load_matrices_transposed(uint32_t (&to)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}

// Splits two floats into bf16 pairs, each part the rounding of what the parts before leave.
template <int kParts>
__device__ __forceinline__ void split(float first, float second, uint32_t (&parts)[kParts]) {
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
    parts[p] = pack_bf16(first, second);
    const float2 rounded = unpack_bf16(parts[p]);
    first -= rounded.x;
    second -= rounded.y;
  }
}

// sums[n] += a · b[n] over operands of several parts, without the products that are below the
// rounding of the more precise operand. The innermost loop is over different sums, so that no
// product waits for the one before it.
template <int kLeft, int kRight, int kCount>
__device__ __forceinline__ void multiply_parts(float (&sums)[kCount][4], int first,
                                               const uint32_t (&a)[kLeft][4],
                                               const uint32_t (&b)[kRight][2][4]) {
  constexpr int kMost = kLeft > kRight ? kLeft : kRight;
#pragma unroll
  for (int i = 0; i < kLeft; ++i) {
#pragma unroll
    for (int j = 0; j < kRight; ++j) {
      if (i + j >= kMost) continue;
#pragma unroll
      for (int n = 0; n < 4; ++n)
        mma_bf16(sums[first + n], a[i], b[j][n / 2][n % 2 * 2], b[j][n / 2][n % 2 * 2 + 1]);
    }
  }
}

// An operand of several parts: tiles [part][64 columns each], part_step bytes between parts.
struct TileParts {
  uint32_t first;
  uint32_t part_step;
};

// sums [16, 8 kCount] += a[row.., 16 step..] · b[column.., 16 step..]ᵀ, over 16 columns of both.
template <int kLeft, int kRight, int kCount>
__device__ __forceinline__ void multiply_step(float (&sums)[kCount][4], TileParts a, int row,
                                              TileParts b, int column, uint32_t right_lanes,
                                              int step) {
  const uint32_t tile = static_cast<uint32_t>(step / 4) * kSwizzledTileBytes;
  uint32_t left[kLeft][4];
#pragma unroll
  for (int p = 0; p < kLeft; ++p)
    load_matrices(left[p], block_at(a.first + p * a.part_step + tile, upright(), row, step % 4));
#pragma unroll
  for (int n = 0; n < kCount; n += 4) {
    uint32_t right[kRight][2][4];
#pragma unroll
    for (int p = 0; p < kRight; ++p)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        load_matrices(right[p][i], block_at(b.first + p * b.part_step + tile, right_lanes,
                                            column + 8 * n + 16 * i, step % 4));
    multiply_parts(sums, n, left, right);
  }
}

// The same over 16 · steps columns, at most 64 · kTiles. Tiles that are full run without branches,
// so that loads go ahead of products.
template <int kLeft, int kRight, int kTiles, int kCount>
__device__ __forceinline__ void multiply_rows(float (&sums)[kCount][4], TileParts a, int row,
                                              TileParts b, int column, uint32_t right_lanes,
                                              int steps) {
  if (steps == 4 * kTiles) {
#pragma unroll
    for (int step = 0; step < 4 * kTiles; ++step)
      multiply_step<kLeft, kRight>(sums, a, row, b, column, right_lanes, step);
  } else {
#pragma unroll 1
    for (int step = 0; step < steps; ++step)
      multiply_step<kLeft, kRight>(sums, a, row, b, column, right_lanes, step);
  }
}

// sums [16, 8 kCount] += a · b[row.., :]: one step of 16 over the rows of b, all of whose columns
// are wanted or, unless kAll, the first 16 · columns16. Sums beyond those, up to the next 32, are
// undefined.
template <bool kAll, int kLeft, int kRight, int kCount>
__device__ __forceinline__ void multiply_columns(float (&sums)[kCount][4],
                                                 const uint32_t (&a)[kLeft][4], TileParts b,
                                                 int row, int columns16) {
  const uint32_t lanes = upright();
#pragma unroll
  for (int n = 0; n < kCount; n += 4) {
    if (!kAll && n >= 2 * columns16) continue;
    const uint32_t tile = static_cast<uint32_t>(n / 8) * kSwizzledTileBytes;
    uint32_t right[kRight][2][4];
#pragma unroll
    for (int p = 0; p < kRight; ++p)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        load_matrices_transposed(
            right[p][i], block_at(b.first + p * b.part_step + tile, lanes, row, n % 8 / 2 + i));
    multiply_parts(sums, n, a, right);
  }
}

// Copies `rows` rows of `chunks` times 16 bytes, `step` elements apart, into a tile in the
// background; further rows become 0, further chunks are left as they are.
template <int kThreads>
__device__ __forceinline__ void copy_tile(uint32_t tile, const __nv_bfloat16* from, int64_t step,
                                          int rows, int chunks) {
  static_assert(kThreads % 64 == 0);
  constexpr int kRows = kThreads / 8;  // at a time, a multiple of 8: one swizzle for all of them
  const int row = static_cast<int>(threadIdx.x) / 8, chunk = static_cast<int>(threadIdx.x) % 8;
  if (chunk >= chunks) return;
  const __nv_bfloat16* source = from + row * step + chunk * 8;
  unsigned char* to = shared_memory() + tile + swizzled(row, chunk);
#pragma unroll
  for (int i = 0; i < 64 / kRows; ++i) {
    const bool valid = row + i * kRows < rows;
    copy_16_bytes(to + i * kRows * 128, valid ? source + i * kRows * step : from, valid);
  }
}

}  // namespace dofla::cuda
