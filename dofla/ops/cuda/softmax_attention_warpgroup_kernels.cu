// The forward in bf16 on GPUs with warpgroup products (sm_90a). Each of a block's two warpgroups
// has 64 queries; both pass over the same tiles of keys and values. While the tensor cores add up
// the values of one tile and compute the logits of the next, the other units exponentiate.
#include <algorithm>

#include "dofla/ops/cuda/launch.cuh"
#include "dofla/ops/cuda/softmax_attention_forward.cuh"
#include "dofla/ops/cuda/warpgroup_mma.cuh"

namespace dofla::cuda {
namespace {

using Element16 = __nv_bfloat16;

template <int kWidth>
struct WarpgroupTiling {
  static constexpr int kThreads = 256;
  static constexpr int kHalves = kWidth / 64;  // swizzled tiles side by side
  static constexpr int kStages = kWidth <= 64 ? 4 : 3;
  static constexpr uint32_t kTileBytes = kHalves * 64 * 64 * 2;  // 64 rows
  static constexpr uint32_t kStageBytes = 2 * kTileBytes;        // keys, then values
  static constexpr uint32_t kQueryBytes = 2 * kTileBytes;
  static constexpr uint32_t kAlignment = 1024;
  static constexpr size_t kSharedBytes = kAlignment + kQueryBytes + kStages * kStageBytes;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Copies kRows rows into swizzled tiles of 64 rows in the background; what is past `rows` and
// `width` becomes 0.
template <class Tiling, int kRows>
__device__ __forceinline__ void copy_rows(uint32_t tile, const Element16* from, int64_t step,
                                          int rows, int width) {
  const int row = threadIdx.x / 8, chunk = threadIdx.x % 8;
  constexpr int kRowsAtOnce = Tiling::kThreads / 8;
#pragma unroll
  for (int half = 0; half < Tiling::kHalves; ++half) {
    const int column = 64 * half + 8 * chunk;
#pragma unroll
    for (int start = 0; start < kRows; start += kRowsAtOnce) {
      const bool valid = start + row < rows && column < width;
      const uint32_t to = tile + start / 64 * Tiling::kTileBytes + half * kSwizzledTileBytes +
                          swizzled(start % 64 + row, chunk);
      copy_16_bytes(shared_memory() + to, valid ? from + (start + row) * step + column : from,
                    valid);
    }
  }
}

// logits [64, 64] = queries · keysᵀ
template <int kWidth>
__device__ __forceinline__ void start_logits(const uint32_t (&queries)[kWidth / 16][4],
                                             uint32_t keys, float (&logits)[8][4]) {
#pragma unroll
  for (int k = 0; k < kWidth / 16; ++k)
    warpgroup_multiply<false>(logits, 0, queries[k],
                              right_operand(keys + k / 4 * kSwizzledTileBytes + k % 4 * 32), k > 0);
  commit_products();
}

// sums [64, D] += weights · values
template <int kWidth>
__device__ __forceinline__ void start_values(const RoundedSums<Element16, 8>& weights,
                                             uint32_t values, float (&sums)[kWidth / 8][4]) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const Fragment<1> left = weights.left(k);
#pragma unroll
    for (int half = 0; half < kWidth / 64; ++half)
      warpgroup_multiply<true>(sums, 8 * half, left.part[0],
                               right_operand(values + half * kSwizzledTileBytes + k * 16 * 128),
                               true);
  }
  commit_products();
}

__device__ __forceinline__ void round_weights(const float (&weights)[8][4],
                                              RoundedSums<Element16, 8>& rounded) {
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    rounded.pair[n][0] = {weights[n][0], weights[n][1]};
    rounded.pair[n][1] = {weights[n][2], weights[n][3]};
  }
}

template <int kWidth>
__device__ __forceinline__ void attend(const SoftmaxForwardArguments& a) {
  using Tiling = WarpgroupTiling<kWidth>;
  constexpr int kStages = Tiling::kStages;
  const uint32_t base = shared_address(shared_memory());
  const uint32_t query_tile = (Tiling::kAlignment - base % Tiling::kAlignment) % Tiling::kAlignment;
  const BlockPlace at = place_of_block(a);
  const int first_query = at.query_tile * kWarpgroupQueryTile, past = past_of(a, at.b);
  const int rows = min(kWarpgroupQueryTile, a.queries - first_query);
  const int split = blockIdx.y, begin = split * a.tiles_per_split;
  // The tiles that queries up to the tile's row `last` see.
  const auto end_for = [&](int last) {
    const int visible = past + first_query + min(last, rows);
    return min((visible + kWarpgroupKeyTile - 1) / kWarpgroupKeyTile, begin + a.tiles_per_split);
  };
  const int group = threadIdx.x / 128, warp_row = threadIdx.x / 32 * 16;
  const int end = end_for(kWarpgroupQueryTile);
  const int own_end = 64 * group < rows ? end_for(64 * (group + 1)) : begin;

  const Element16* keys = head_of<Element16>(a.k, at.b, at.h / a.group);
  const Element16* values = head_of<Element16>(a.v, at.b, at.h / a.group);
  const auto stage_of = [&](int tile) {
    return query_tile + Tiling::kQueryBytes + (tile - begin) % kStages * Tiling::kStageBytes;
  };
  const auto load = [&](int tile) {
    if (tile < end) {
      const int first = tile * kWarpgroupKeyTile, count = past + a.queries - first;
      const uint32_t stage = stage_of(tile);
      copy_rows<Tiling, 64>(stage, keys + first * a.k.token_step, a.k.token_step, count, a.width);
      copy_rows<Tiling, 64>(stage + Tiling::kTileBytes, values + first * a.v.token_step,
                            a.v.token_step, count, a.width);
    }
    commit_copies();
  };
  // Waits for a tile. All warps have then finished the one two tiles before, whose stage is free.
  const auto await = [&](int tile) {
    wait_for_copies<kStages - 3>();
    show_to_warpgroups();
    __syncthreads();
    load(tile + kStages - 2);
  };

  RowSums<kWidth> sums;
  if (begin < end) {
    copy_rows<Tiling, kWarpgroupQueryTile>(
        query_tile, head_of<Element16>(a.q, at.b, at.h) + first_query * a.q.token_step,
        a.q.token_step, rows, a.width);
#pragma unroll
    for (int i = 0; i < kStages - 2; ++i) load(begin + i);
    await(begin);
  }
  int tile = begin;
  if (begin < own_end) {
    uint32_t queries[kWidth / 16][4];
#pragma unroll
    for (int k = 0; k < kWidth / 16; ++k)
      load_matrices(queries[k],
                    block_at(query_tile + group * Tiling::kTileBytes + k / 4 * kSwizzledTileBytes,
                             upright(), warp_row % 64, k % 4));
    float logits[8][4], shrink[2];
    RoundedSums<Element16, 8> weights;
    const auto exponentiate_tile = [&](int of) {
      const int limit = past + first_query + warp_row - of * kWarpgroupKeyTile;
      if (limit < kWarpgroupKeyTile - 1) mask_later(logits, limit);
      return exponentiate(logits, a.log2_scale, sums, shrink);
    };
    begin_products();
    start_logits<kWidth>(queries, base + stage_of(tile), logits);
    wait_for_products<0>();
    pin(logits);
    exponentiate_tile(tile);
    round_weights(logits, weights);
    for (; tile + 1 < own_end; ++tile) {
      await(tile + 1);
      pin(logits);
      pin(sums.values);
      begin_products();
      start_logits<kWidth>(queries, base + stage_of(tile + 1), logits);
      start_values<kWidth>(weights, base + stage_of(tile) + Tiling::kTileBytes, sums.values);
      wait_for_products<1>();
      pin(logits);
      const bool moved = exponentiate_tile(tile + 1);
      wait_for_products<0>();
      pin(sums.values);
      if (moved) shrink_rows(shrink, sums.values);
      round_weights(logits, weights);
    }
    pin(sums.values);
    begin_products();
    start_values<kWidth>(weights, base + stage_of(tile) + Tiling::kTileBytes, sums.values);
    wait_for_products<0>();
    pin(sums.values);
  }
  // The other warpgroup may have more to do, and needs this one to load its tiles.
  for (; tile + 1 < end; ++tile) await(tile + 1);
  write_result<Element16>(a, at, split, first_query + warp_row, sums);
}

#endif

template <int kWidth>
__global__ void __launch_bounds__(WarpgroupTiling<kWidth>::kThreads, kWidth <= 64 ? 2 : 1)
    softmax_attention_warpgroup(const __grid_constant__ SoftmaxForwardArguments a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  attend<kWidth>(a);
#endif
}

template <int kWidth>
cudaError_t launch_width(const SoftmaxForwardArguments& a, cudaStream_t stream) {
  using Tiling = WarpgroupTiling<kWidth>;
  const dim3 grid(static_cast<unsigned>(a.batch * a.heads * a.query_tiles),
                  static_cast<unsigned>(a.splits));
  return launch(softmax_attention_warpgroup<kWidth>, grid, Tiling::kThreads, Tiling::kSharedBytes,
                stream, a);
}

}  // namespace

bool warpgroups_available() {
#ifdef DOFLA_SM90A
  int device = 0, major = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         major == 9;
#else
  return false;
#endif
}

cudaError_t launch_warpgroup_forward(const SoftmaxForwardArguments& a, cudaStream_t stream) {
  return a.width <= 64 ? launch_width<64>(a, stream) : launch_width<128>(a, stream);
}

}  // namespace dofla::cuda
