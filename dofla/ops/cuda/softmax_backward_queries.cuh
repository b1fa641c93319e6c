// The warps of the softmax attention's backward that have the gradients of queries: a warpgroup
// that multiplies, and warps that add what it found to what earlier tiles of keys found.
#pragma once

#include "dofla/ops/cuda/softmax_backward_block.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

namespace dofla::cuda {

// Where the sum of element (query, d) lies in a tile of them: as floats, so arranged that lanes
// that have the same d of four pairs of queries, and eight d, write to different banks.
__device__ __forceinline__ int place_of_sum(int query, int d) {
  return query * 64 + (d ^ (query / 2 % 4 * 8));
}

// sums [64, 32 queries] = Kᵀ dS over the first 16 · kSteps keys.
template <int kSteps>
__device__ __forceinline__ void start_query_gradients(const uint32_t (&keys)[kBackwardKeys / 16][4],
                                                      uint32_t rows, float (&sums)[4][4]) {
  begin_products();
#pragma unroll
  for (int k = 0; k < kSteps; ++k)
    warpgroup_multiply_32(sums, keys[k],
                          right_operand(rows + k / 4 * kSwizzledTileBytes + k % 4 * 32), k > 0);
  commit_products();
}

// The gradients of queries that both warpgroups' keys give, transposed: Kᵀ dS.
__device__ __forceinline__ void sum_query_gradients(const BackwardBlock& block) {
  auto& barriers = block.barriers();
  const int warp = threadIdx.x % 128 / 32, g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
  uint32_t step = 0;
  block.each_item([&](const BackwardItem& item, const auto& release) {
    uint32_t keys[kBackwardKeys / 16][4];
#pragma unroll
    for (int k = 0; k < kBackwardKeys / 16; ++k)
      load_matrices_transposed(
          keys[k], block_at(block.tile(BackwardBlock::kKeys), sideways(), 16 * k, warp));
    release();
    each_step(block.a, item, [&](int, int tile) {
      const bool both = last_key(block.a, tile) >= item.key_tile * kBackwardKeys + 64;
      float* const to = block.at<float>(BackwardBlock::sums_of(step));
      barriers.slot.wait_until_full(step);
      barriers.sum.wait_until_free(step);
      // Half of the queries at a time, so that all of the keys can stay in registers.
#pragma unroll 1
      for (int half = 0; half < 2; ++half) {
        float sums[4][4];
        const uint32_t rows = block.address(BackwardBlock::slot_of(step) + half * 32 * 128);
        if (both)
          start_query_gradients<8>(keys, rows, sums);
        else
          start_query_gradients<4>(keys, rows, sums);
        wait_for_products<0>();
        pin(sums);
        if (half == 1) arrive_as_warp(barriers.slot.free_at(step));
#pragma unroll
        for (int n = 0; n < 4; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i)
            to[place_of_sum(32 * half + 8 * n + 2 * c + i % 2, 16 * warp + g + i / 2 * 8)] =
                sums[n][i];
        }
      }
      show_to_warpgroups();
      arrive_as_warp(barriers.sum.full_at(step));
      ++step;
    });
  });
}

// One warp adds every kWriters-th tile of sums to device memory, after the tiles of keys that come
// after its own have, so that the order never changes. The first tile of keys of all is the last to
// add, and rounds the result.
struct QueryGradientWriter {
  const BackwardBlock& block;
  uint32_t which, lane;
  uint32_t step = 0;
  uint32_t partial_odd = 0;

  __device__ QueryGradientWriter(const BackwardBlock& of, uint32_t writer)
      : block(of), which(writer), lane(threadIdx.x % 32) {}

  __device__ __forceinline__ float* sums() const {
    return block.at<float>(BackwardBlock::kSum + which * BackwardBlock::kSumBytes);
  }
  __device__ __forceinline__ float* earlier() const {
    return block.at<float>(BackwardBlock::kPartial + which * BackwardBlock::kSumBytes);
  }

  // Waits until so many tiles of keys have added.
  __device__ __forceinline__ void await(const int* added, int count) const {
    int found;
    do {
      asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(found) : "l"(added) : "memory");
    } while (found < count);
    asm volatile("fence.proxy.async;" ::: "memory");
  }

  __device__ __forceinline__ void add(int* added, int before, float* partial) {
    if (lane == 0) {
      if (before == 0) {
        bulk_store(partial, sums(), BackwardBlock::kSumBytes);
      } else {
        await(added, before);
        bulk_add(partial, sums(), BackwardBlock::kSumBytes);
      }
      commit_bulk_stores();
      wait_for_bulk_reads();
      arrive(block.barriers().sum.free_at(which));
      wait_for_bulk_stores();
      asm volatile("fence.proxy.async;" ::: "memory");
      asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(added), "r"(before + 1) : "memory");
    }
    __syncwarp();
  }

  __device__ __forceinline__ void finish(const int* added, int before, const float* partial,
                                         __nv_bfloat16* to, int rows) {
    const WarpgroupBackwardArguments& a = block.a;
    if (before > 0) {
      uint64_t* const there = &block.barriers().partial[which];
      if (lane == 0) {
        await(added, before);
        arrive_expecting(there, BackwardBlock::kSumBytes);
        bulk_copy(earlier(), partial, BackwardBlock::kSumBytes, there);
      }
      wait_for_phase(there, partial_odd);
      partial_odd ^= 1;
    }
    const int column = lane % 16 * 4;
#pragma unroll 1
    for (int row = lane / 16; row < min(rows, kBackwardQueries); row += 2) {
      const int place = place_of_sum(row, column);
      float4 sum = *reinterpret_cast<const float4*>(sums() + place);
      if (before > 0) {
        const float4 more = *reinterpret_cast<const float4*>(earlier() + place);
        sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
      }
      if (column < a.width)
        *reinterpret_cast<uint2*>(to + row * a.grad_q.token_step + column) =
            make_uint2(pack_bf16(a.scale * sum.x, a.scale * sum.y),
                       pack_bf16(a.scale * sum.z, a.scale * sum.w));
    }
    arrive_as_warp(block.barriers().sum.free_at(which));
  }

  __device__ __forceinline__ void run() {
    const WarpgroupBackwardArguments& a = block.a;
    block.each_item([&](const BackwardItem& item, const auto& release) {
      release();
      each_step(a, item, [&](int h, int tile) {
        if (step % BackwardBlock::kWriters == which) {
          block.barriers().sum.wait_until_full(step);
          const int64_t index = (int64_t{item.b} * a.heads + h) * a.query_tiles + tile;
          const int before = last_key(a, tile) / kBackwardKeys - item.key_tile;
          float* const partial = a.partials + index * (BackwardBlock::kSumBytes / sizeof(float));
          const int first = tile * kBackwardQueries;
          if (item.key_tile > 0)
            add(a.added + index, before, partial);
          else
            finish(a.added + index, before, partial,
                   head_of<__nv_bfloat16>(a.grad_q, item.b, h) + first * a.grad_q.token_step,
                   a.queries - first);
        }
        ++step;
      });
    });
  }
};

}  // namespace dofla::cuda

#endif
