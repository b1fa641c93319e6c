// What a block that computes a segment's gradients works on, how it gets there, and how its results
// leave it.
#pragma once

#include "dofla/ops/cuda/exact_key_parts.cuh"
#include "dofla/ops/cuda/fragment.cuh"

namespace dofla::cuda {

template <class T, int kWidth>
struct GradientTiling {
  static constexpr int kWarps = sizeof(T) == 2 ? 8 : 4;
  static constexpr int kKeys = kRowTile * kWarps, kQueries = kKeys / 2;
  static constexpr int kStride = kWidth + 8, kSlopeStride = kQueries + 8;
  // Keys with values, two stages of queries with output gradients, S; log sums and e.
  static constexpr size_t kSharedBytes =
      ((2 * kKeys + 4 * kQueries) * kStride + kKeys * kSlopeStride) * sizeof(T) +
      4 * kQueries * sizeof(float);
  static constexpr int kBlocks = kWidth > 64 ? 1 : 2;  // at least, of a multiprocessor
};

// Writes the sums [16, kColumns] of a warp, by way of memory that no other warp uses meanwhile, so
// that neighbouring threads write 16 bytes each.
template <int kColumns, class T, int kStride>
__device__ __forceinline__ void write_by(Tile<T, kStride> by, const float (&sums)[kColumns / 8][4],
                                         float factor, int rows, int width, bool packed, T* out,
                                         int64_t step) {
  constexpr int kPack = Pack<T>::kSize, kPacks = kColumns / kPack;
  const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      store_pair(by.at(g + 8 * half, 8 * n + 2 * c),
                 Pair<T>(factor * sums[n][2 * half], factor * sums[n][2 * half + 1]));
  }
  __syncwarp();
#pragma unroll
  for (int start = 0; start < kRowTile * kPacks; start += 32) {
    const int row = (start + lane) / kPacks, column = (start + lane) % kPacks * kPack;
    if (row >= rows || column >= width) continue;
    T* to = out + row * step + column;
    if (packed) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(by.at(row, column));
    } else {
#pragma unroll
      for (int e = 0; e < kPack; ++e)
        if (column + e < width) to[e] = *by.at(row, column + e);
    }
  }
  __syncwarp();
}

// The queries of a segment that see a key.
struct QueriesThatSee {
  int first, count;
  __device__ bool contains(int query) const {
    return static_cast<unsigned>(query - first) < static_cast<unsigned>(count);
  }
};

// A block has a segment of a key head.
template <class T, int kWidth>
struct GradientBlock {
  using Tiling = GradientTiling<T, kWidth>;
  using Rows = Tile<T, Tiling::kStride>;
  static constexpr int kKeys = Tiling::kKeys, kQueries = Tiling::kQueries;

  const ExactBackwardArguments& a;
  const Segment segment;
  const int b, key_head, tiles;  // tiles of queries of a head
  const Rows keys, values;
  T* const stages;
  const Tile<T, Tiling::kSlopeStride> slopes;  // S
  float* const numbers;
  const Positions positions;

  __device__ GradientBlock(const ExactBackwardArguments& arguments, T* shared)
      : a(arguments),
        segment(a.segments.at(blockIdx.y / a.key_heads, blockIdx.y % a.key_heads, blockIdx.x)),
        b(blockIdx.y / a.key_heads),
        key_head(blockIdx.y % a.key_heads),
        tiles((segment.queries + kQueries - 1) / kQueries),
        keys{shared},
        values{shared + kKeys * Tiling::kStride},
        stages(shared + 2 * kKeys * Tiling::kStride),
        slopes{stages + 4 * kQueries * Tiling::kStride},
        numbers(reinterpret_cast<float*>(slopes.data + kKeys * Tiling::kSlopeStride)),
        positions{reinterpret_cast<int2*>(numbers + 4 * kQueries)} {}

  __device__ static int warp() { return threadIdx.x / 32; }
  __device__ int head_of_pass(int pass) const { return key_head * a.group + pass / tiles; }
  __device__ int query_of_pass(int pass) const { return pass % tiles * kQueries; }
  __device__ int64_t row_of(int head, int query) const {  // of [B, H, T]
    return (int64_t{b} * a.key_heads * a.group + head) * a.tokens + segment.first + query;
  }
  // Queries (0) or output gradients (1), and their log sums or e.
  __device__ Rows stage(int step, int which) const {
    return {stages + (step % 2 * 2 + which) * kQueries * Tiling::kStride};
  }
  __device__ float* number(int step, int which) const {
    return numbers + (step % 2 * 2 + which) * kQueries;
  }

  __device__ void load_keys(int first) const {
    load_segment_keys<T, kWidth>(keys, kKeys, positions, first, segment.count(), a.k,
                                 head_of<T>(a.k, b, key_head), a.width, a.packed);
    load_segment_keys<T, kWidth>(values, kKeys, positions, first, segment.count(), a.v,
                                 head_of<T>(a.v, b, key_head), a.width, a.packed);
    commit_copies();
  }

  __device__ void load_queries(int pass, int step) const {
    const int head = head_of_pass(pass), first = query_of_pass(pass);
    const int rows = segment.queries - first;
    const auto load = [&](const HeadRows& from, Rows to) {
      const T* top = head_of<T>(from, b, head) + (segment.first + first) * from.token_step;
      load_named_rows<T, kWidth>(
          kQueries, a.width, a.packed, top,
          [&](int row) { return row < rows ? top + row * from.token_step : nullptr; },
          [&](int row) { return to.at(row, 0); });
    };
    load(a.q, stage(step, 0));
    load(a.g, stage(step, 1));
    if (threadIdx.x < kQueries) {
      const int64_t at = row_of(head, first);
      const int row = threadIdx.x < rows ? threadIdx.x : 0;
      copy_4_bytes(number(step, 0) + threadIdx.x, a.log_sum + at + row, threadIdx.x < rows);
      copy_4_bytes(number(step, 1) + threadIdx.x, a.e + at + row, threadIdx.x < rows);
    }
    commit_copies();
  }

  __device__ QueriesThatSee queries_that_see(int position) const {
    if (position >= segment.count()) return {0, 0};
    const int first = max(position - segment.last_seen(0), 0);
    const int times = min(positions.leaves(position) - segment.time, kTokensTogether) + 1;
    const int end =
        segment.time == 0 ? segment.queries : min(segment.queries, times << segment.block_shift);
    return {first, max(end - first, 0)};
  }

  // Where the next segment has each key: those that stay keep their order. By one warp.
  __device__ void find_next(int64_t part) const {
    const Segment after = a.segments.at(b, key_head, blockIdx.x + 1);
    const int lane = threadIdx.x % 32, count = segment.count();
    for (int p = lane, staying = 0; p - lane < count; p += 32) {
      const bool stays = after.queries > 0 && p < count && positions.leaves(p) >= after.time;
      const unsigned all = __ballot_sync(kWholeWarp, stays);
      if (p < count) a.next[part + p] = stays ? staying + __popc(all & ((1u << lane) - 1)) : -1;
      staying += __popc(all);
    }
  }
};

}  // namespace dofla::cuda
