// The rows that a sweep of the linear attention's backward owns and passes over, chunk after chunk:
// from device memory to shared memory, and gradients back.
#pragma once

#include "dofla/ops/cuda/linear_attention_chunk.cuh"

namespace dofla::cuda {

struct LinearBackwardArguments {
  HeadRows q, k, v, g;
  HeadRowsOut grad_q, grad_k, grad_v;
  float *part_q, *part_k, *part_v;  // [B, P, T, D] where several blocks add up, or null
  const float *log_sum, *e;         // [B, H, T]
  FeatureTable features;
  const float *z, *log_alpha;
  const float *u, *norm_weight;  // of untied features, or null
  // Of queries and of keys, by query head: [B, 2, ΣM, D], [B, 2, ΣM], and of η by part, [B, P].
  float *grad_directions, *grad_log_alpha, *grad_norm;
  int heads, group, tokens, width, total, block;
  float inner_scale, norm_scale;
  bool packed, packed_q, packed_k, packed_v;
};

template <class T, int kWidth>
struct SweepTiling : ChunkTiling<T, kWidth> {
  using Chunk = ChunkTiling<T, kWidth>;
  // Three blocks hide more latency than two that prefetch a chunk.
  static constexpr int kBlocksAtOnce = Chunk::kFast && kWidth <= 64 ? 3 : 1;
  // Directions, sums, and the rows x, u, y, w of a chunk; log sums and e of its queries.
  static constexpr size_t kTiedBytes = (Chunk::kWideElements + 5 * Chunk::kElements) * sizeof(T) +
                                       2 * Chunk::kTile * sizeof(float) +
                                       sizeof(ChunkShared<Chunk::kTile>);
  static size_t shared_bytes(bool untied) {
    return untied ? untied_shared_bytes<Chunk, T>(kTiedBytes) : kTiedBytes;
  }
};

// For keys, time runs backwards.
template <class T, int kWidth, bool kKeys>
struct SweepRows {
  using Tiling = SweepTiling<T, kWidth>;
  using RowTile = typename Tiling::RowTile;
  using Columns = typename Tiling::Columns;
  static constexpr int kTile = Tiling::kTile;

  const LinearBackwardArguments& a;
  const BlockFeatures f;
  const int key_head;
  const int warp, g, c;  // this thread's place in the fragments
  // In shared memory. Factors overwrite y, gradients of log features overwrite u.
  const typename Tiling::Wide key_directions, query_directions;  // the same where tied
  const RowTile sums, x, u, y, w;
  float *const log_sum, *const e;
  ChunkShared<kTile>& shared;

  __device__ __forceinline__ SweepRows(const LinearBackwardArguments& arguments, T* memory)
      : a(arguments),
        f(features_of_block(arguments.features, kTile, blockIdx.x)),
        key_head(f.head / arguments.group),
        warp(threadIdx.x / 32),
        g(threadIdx.x % 32 / 4),
        c(threadIdx.x % 4),
        key_directions(memory, kTile),
        query_directions(
            arguments.u == nullptr ? memory : after_shared<T>(shared_memory(), Tiling::kTiedBytes),
            kTile),
        sums{memory + Tiling::kWideElements},
        x{sums.data + Tiling::kElements},
        u{x.data + Tiling::kElements},
        y{u.data + Tiling::kElements},
        w{y.data + Tiling::kElements},
        log_sum(reinterpret_cast<float*>(w.data + Tiling::kElements)),
        e(log_sum + kTile),
        shared(*reinterpret_cast<ChunkShared<kTile>*>(e + kTile)) {}

  // The row at `position` of the sweep, and the step to the next.
  template <class Row, class Rows>
  __device__ __forceinline__ Row* row_at(const Rows& rows, int64_t batch, int head, int position,
                                         int64_t& step) const {
    step = kKeys ? -rows.token_step : rows.token_step;
    return head_of<std::remove_const_t<Row>>(rows, batch, head) +
           (kKeys ? a.tokens - 1 - position : position) * rows.token_step;
  }

  __device__ __forceinline__ void load_chunk(int begin) const {
    const auto load = [&](RowTile to, const HeadRows& rows, int head) {
      int64_t step;
      const T* first = row_at<const T>(rows, blockIdx.y, head, begin, step);
      load_rows<kTile, kWidth, Tiling::kThreads>(to, first, step, a.tokens - begin, a.width,
                                                 a.packed);
    };
    load(kKeys ? y : x, a.q, f.head);
    load(kKeys ? x : y, a.k, key_head);
    load(kKeys ? u : w, a.v, key_head);
    load(kKeys ? w : u, a.g, f.head);
    const int position = begin + threadIdx.x;
    if (threadIdx.x < kTile) {
      const bool valid = position < a.tokens;
      const int64_t token = kKeys ? a.tokens - 1 - position : position;
      const int64_t at = valid ? (int64_t{blockIdx.y} * a.heads + f.head) * a.tokens + token : 0;
      copy_4_bytes(log_sum + threadIdx.x, a.log_sum + at, valid);
      copy_4_bytes(e + threadIdx.x, a.e + at, valid);
    }
    commit_copies();
  }

  // Writes [16, columns] of the warp's rows below `rows`: to the result, or to the block's own
  // part.
  __device__ __forceinline__ void write(const Columns& columns, int column, int begin, int rows,
                                        const HeadRowsOut& out, int head, float* parts,
                                        bool packed) const {
    const auto write_to = [&](auto* first, int64_t step, bool paired) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = 16 * warp + 8 * half + g;
        if (row >= rows) continue;
#pragma unroll
        for (int n = 0; n < Tiling::kColumns / 8; ++n)
          store_two(first + row * step, column + 8 * n + 2 * c, a.width, paired,
                    columns[n][2 * half], columns[n][2 * half + 1]);
      }
    };
    int64_t step;
    if (parts != nullptr) {
      const int64_t part = int64_t{blockIdx.y} * gridDim.x + blockIdx.x;
      const HeadRowsOut own = {parts, int64_t{a.tokens} * a.width, 0, a.width};
      write_to(row_at<float>(own, part, 0, begin, step), step, a.width % 2 == 0);
    } else {
      write_to(row_at<T>(out, blockIdx.y, head, begin, step), step, packed);
    }
  }
};

}  // namespace dofla::cuda
