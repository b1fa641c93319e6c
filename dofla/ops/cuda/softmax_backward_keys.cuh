// The warps of the softmax attention's backward that load tiles and that sum the gradients of keys
// and values. Logits and their gradients are computed as keys × queries: so they are, in registers,
// left operands of the products that sum over queries.
#pragma once

#include "dofla/ops/cuda/gradient_rows.cuh"
#include "dofla/ops/cuda/softmax_backward_block.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

namespace dofla::cuda {

// One thread loads keys, values, queries and gradients of outputs, as far ahead as there is room.
// Items are handed out to blocks in order, so that what an item waits for has always begun before.
__device__ __forceinline__ void load_tiles(const BackwardBlock& block) {
  const WarpgroupBackwardArguments& a = block.a;
  auto& barriers = block.barriers();
  uint32_t step = 0;
  for (uint32_t turn = 0;; ++turn) {
    const int number = atomicAdd(a.next_item, 1);
    barriers.item.wait_until_free(turn);
    barriers.item_number = number < a.items ? number : -1;
    uint64_t* const full = barriers.item.full_at(0);
    if (number >= a.items) {
      arrive(full);
      return;
    }
    const BackwardItem item = item_at(a, number);
    arrive_expecting(full, 2 * BackwardBlock::kKeyBytes);
    const int first_key = item.key_tile * kBackwardKeys;
    bulk_copy_box(block.address(BackwardBlock::kKeys), a.k, 0, first_key, item.key_head, item.b,
                  full);
    bulk_copy_box(block.address(BackwardBlock::kValues), a.v, 0, first_key, item.key_head, item.b,
                  full);
    each_step(a, item, [&](int h, int tile) {
      barriers.stage.wait_until_free(step);
      uint64_t* const there = barriers.stage.full_at(step);
      arrive_expecting(there, BackwardBlock::kStageBytes + BackwardBlock::kStatisticBytes);
      const uint32_t to = block.address(BackwardBlock::queries_of(step));
      const int row = tile * kBackwardQueries;
      bulk_copy_box(to, a.q, 0, row, h, item.b, there);
      bulk_copy_box(to + BackwardBlock::kQueryBytes, a.grad_out, 0, row, h, item.b, there);
      const int64_t statistics = (int64_t{item.b} * a.heads + h) * a.query_tiles + tile;
      bulk_copy(block.at<float>(BackwardBlock::statistics_of(step)),
                a.statistics + statistics * 2 * kBackwardQueries, BackwardBlock::kStatisticBytes,
                there);
      ++step;
    });
  }
}

// A warpgroup's 64 keys: their gradients and those of their values.
struct KeyWarpgroup {
  static constexpr int kBlocks = kBackwardQueries / 8;
  using Tile = float[kBlocks][4];

  const BackwardBlock& block;
  int group, warp_row;  // which warpgroup, and a warp's first row in its tile of 64
  uint32_t step = 0;
  uint32_t keys[kBackwardWidth / 16][4], values[kBackwardWidth / 16][4];
  float grad_k[kBackwardWidth / 8][4], grad_v[kBackwardWidth / 8][4];

  __device__ explicit KeyWarpgroup(const BackwardBlock& of)
      : block(of), group(threadIdx.x / 128), warp_row(threadIdx.x % 128 / 32 * 16) {}

  __device__ __forceinline__ void begin_item() {
    const uint32_t key_tile = block.tile(BackwardBlock::kKeys + group * kSwizzledTileBytes);
    const uint32_t value_tile = block.tile(BackwardBlock::kValues + group * kSwizzledTileBytes);
#pragma unroll
    for (int k = 0; k < kBackwardWidth / 16; ++k) {
      load_matrices(keys[k], block_at(key_tile, upright(), warp_row, k));
      load_matrices(values[k], block_at(value_tile, upright(), warp_row, k));
    }
#pragma unroll
    for (int n = 0; n < kBackwardWidth / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) grad_k[n][i] = grad_v[n][i] = 0;
    }
  }

  // The statistics of the columns that a lane has in column block n.
  __device__ __forceinline__ float2 statistic(int which, int n) const {
    const uint32_t column = which * kBackwardQueries + 8 * n + threadIdx.x % 4 * 2;
    return *block.at<float2>(BackwardBlock::statistics_of(step) + column * sizeof(float));
  }

  // sums [64, queries] = left · rowsᵀ
  __device__ __forceinline__ void start_dots(const uint32_t (&left)[kBackwardWidth / 16][4],
                                             uint32_t rows, Tile& sums) const {
#pragma unroll
    for (int k = 0; k < kBackwardWidth / 16; ++k)
      warpgroup_multiply<false>(sums, 0, left[k], right_operand(block.address(rows + k * 32)),
                                k > 0);
    commit_products();
  }

  // sums [64, D] += left · rows
  __device__ __forceinline__ void start_sums(const RoundedSums<__nv_bfloat16, kBlocks>& left,
                                             uint32_t rows,
                                             float (&sums)[kBackwardWidth / 8][4]) const {
#pragma unroll
    for (int k = 0; k < kBackwardQueries / 16; ++k) {
      const Fragment<1> a = left.left(k);
      warpgroup_multiply<true>(sums, 0, a.part[0],
                               right_operand(block.address(rows + k * 16 * 128)), true);
    }
    commit_products();
  }

  // Hides the keys from queries before them. `limit`: the column of the tile's query that is the
  // first to see the warp's first key.
  static __device__ __forceinline__ void mask_earlier(int limit, Tile& logits) {
    const int first = limit + threadIdx.x % 32 / 4 - threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (8 * n + i % 2 < first + i / 2 * 8) logits[n][i] = -INFINITY;
    }
  }

  __device__ __forceinline__ void exponentiate(float scale, Tile& logits) const {
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
      const float2 shift = statistic(0, n);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        logits[n][i] = fast_exp2(fmaf(logits[n][i], scale, i % 2 == 0 ? shift.x : shift.y));
    }
  }

  // A tile of queries. Between its products the other warpgroups have the tensor cores.
  __device__ __forceinline__ void attend(int first_key, int tile) {
    auto& barriers = block.barriers();
    const uint32_t queries = BackwardBlock::queries_of(step),
                   gradients = queries + BackwardBlock::kQueryBytes;
    Tile logits, gradient;
    barriers.stage.wait_until_full(step);
    begin_products();
    start_dots(keys, queries, logits);
    start_dots(values, gradients, gradient);
    wait_for_products<1>();
    pin(logits);
    const int past = block.a.keys - block.a.queries;
    const int limit = first_key + warp_row - past - tile * kBackwardQueries;
    if (limit + 15 > 0) mask_earlier(limit, logits);
    exponentiate(block.a.log2_scale, logits);
    RoundedSums<__nv_bfloat16, kBlocks> rounded_p, rounded;
    round_sums(logits, rounded_p);
    begin_products();
    start_sums(rounded_p, gradients, grad_v);
    wait_for_products<1>();
    pin(gradient);
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
      const float2 e = statistic(1, n);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        gradient[n][i] = logits[n][i] * (gradient[n][i] + (i % 2 == 0 ? e.x : e.y));
    }
    round_sums(gradient, rounded);
    barriers.slot.wait_until_free(step);
    const uint32_t to = block.tile(BackwardBlock::slot_of(step) + group * kSwizzledTileBytes);
#pragma unroll
    for (int k = 0; k < kBackwardQueries / 16; ++k)
      store_matrices_transposed(rounded.left(k).part[0],
                                block_at(to, sideways(), 16 * k, warp_row / 16));
    show_to_warpgroups();
    arrive_as_warp(barriers.slot.full_at(step));
    begin_products();
    start_sums(rounded, queries, grad_k);
    wait_for_products<0>();
    pin(grad_v);
    pin(grad_k);
    arrive_as_warp(barriers.stage.free_at(step));
    ++step;
  }

  // A tile of queries that sees none of this warpgroup's keys.
  __device__ __forceinline__ void pass() {
    auto& barriers = block.barriers();
    barriers.slot.wait_until_free(step);
    arrive_as_warp(barriers.slot.full_at(step));
    arrive_as_warp(barriers.stage.free_at(step));
    ++step;
  }

  __device__ __forceinline__ void run() {
    const WarpgroupBackwardArguments& a = block.a;
    block.each_item([&](const BackwardItem& item, const auto& release) {
      begin_item();
      release();
      const int first_key = item.key_tile * kBackwardKeys + 64 * group;
      for (int h = 0; h < a.group; ++h) {
        int tile = item.first_query_tile;
        for (; tile < a.query_tiles && last_key(a, tile) < first_key; ++tile) pass();
        for (; tile < a.query_tiles; ++tile) attend(first_key, tile);
      }
      const int row = first_key + warp_row;
      write_rows<__nv_bfloat16, kBackwardWidth>(
          grad_k, a.scale, row, a.keys, a.width, true,
          head_of<__nv_bfloat16>(a.grad_k, item.b, item.key_head), a.grad_k.token_step);
      write_rows<__nv_bfloat16, kBackwardWidth>(
          grad_v, 1.0f, row, a.keys, a.width, true,
          head_of<__nv_bfloat16>(a.grad_v, item.b, item.key_head), a.grad_v.token_step);
    });
  }
};

}  // namespace dofla::cuda

#endif
