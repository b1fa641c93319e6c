// One sweep of the linear attention's backward. With D_i the denominator of row i, g_i its output's
// gradient and e_i = g_i·out_i, every pair j ≤ i receives
//   ∂loss / ∂log(φ̃_m(q_i) φ̃_m(k_j)) = ψ_im φ̃_m(k_j) (g_i·v_j − e_i),   ψ_im = φ̃_m(q_i) / D_i.
// The gradients of queries sum over earlier keys; those of keys and values over later queries,
// which is the same with time running backwards. Each sweep owns rows x_i with vectors u_i and
// passes over rows y_j with vectors w_j:
//   queries:  x = q, u = g,  y = k, w = v, c = 1    keys:  x = k, u = v,  y = q, w = g, c = e
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
  float* grad_z;          // [B, 2, ΣM, D]
  float* grad_log_alpha;  // [B, 2, ΣM]
  int heads, group, tokens, width, total;
  float inner_scale, norm_scale;
  bool packed, packed_q, packed_k, packed_v;
};

template <class T, int kWidth>
struct SweepTiling : ChunkTiling<T, kWidth> {
  using Chunk = ChunkTiling<T, kWidth>;
  // Three blocks hide more of each other's waiting than two that load a chunk ahead.
  static constexpr int kBlocksAtOnce = Chunk::kFast && kWidth <= 64 ? 3 : 1;
  // Directions, sums, and the rows x, u, y, w of a chunk; log sums and e of its queries.
  static constexpr size_t kSharedBytes = (Chunk::kWideElements + 5 * Chunk::kElements) * sizeof(T) +
                                         2 * Chunk::kTile * sizeof(float) +
                                         sizeof(ChunkShared<Chunk::kTile>);
};

// Factors exp(log + peak) of the warp's rows, 0 past `rows`.
template <class Tiling>
__device__ __forceinline__ void own_factors(const typename Tiling::Logs& logs, int rows,
                                            const ChunkShared<Tiling::kTile>& shared,
                                            typename Tiling::Factors& factors) {
  const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4, row = threadIdx.x / 32 * 16 + g;
#pragma unroll
  for (int n = 0; n < Tiling::kBlocks; ++n) {
    const int m = 8 * n + 2 * c;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool taken = row + 8 * half < rows;
      factors.pair[n][half] = {taken ? fast_exp(logs[n][2 * half] + shared.peak[m]) : 0.0f,
                               taken ? fast_exp(logs[n][2 * half + 1] + shared.peak[m + 1]) : 0.0f};
    }
  }
}

template <class T, int kWidth, bool kKeys>
struct Sweep {
  using Tiling = SweepTiling<T, kWidth>;
  using RowTile = typename Tiling::RowTile;
  using Factors = typename Tiling::Factors;
  using Logs = typename Tiling::Logs;
  using Columns = typename Tiling::Columns;
  static constexpr int kTile = Tiling::kTile, kGroups = kTile / 16;

  const LinearBackwardArguments& a;
  const BlockFeatures f;
  const int key_head;
  const int warp, g, c;  // this thread's place in the fragments
  // In shared memory. Factors take the place of y, gradients of log features that of u.
  const typename Tiling::Wide directions;
  const RowTile sums, x, u, y, w;
  float *const log_sum, *const e;
  ChunkShared<kTile>& shared;
  // Of this thread: sums over rows and gradients of its warp's features, the peak of one feature.
  typename Tiling::Values b = {}, grad_z = {};
  float grad_log_alpha[4] = {};
  float log_max;

  __device__ __forceinline__ Sweep(const LinearBackwardArguments& arguments, T* memory)
      : a(arguments),
        f(features_of_block(arguments.features, kTile, blockIdx.x)),
        key_head(f.head / arguments.group),
        warp(threadIdx.x / 32),
        g(threadIdx.x % 32 / 4),
        c(threadIdx.x % 4),
        directions(memory, kTile),
        sums{memory + Tiling::kWideElements},
        x{sums.data + Tiling::kElements},
        u{x.data + Tiling::kElements},
        y{u.data + Tiling::kElements},
        w{y.data + Tiling::kElements},
        log_sum(reinterpret_cast<float*>(w.data + Tiling::kElements)),
        e(log_sum + kTile),
        shared(*reinterpret_cast<ChunkShared<kTile>*>(e + kTile)),
        log_max(static_cast<int>(threadIdx.x) < f.count ? -INFINITY : 0.0f) {}

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

  // Factors of y into its place and of the warp's rows of x, relative to new peaks; the sums
  // follow. Returns how many of the `rows` rows the chunk takes.
  __device__ __forceinline__ int settle_factors(int rows, Factors& own) {
    const float* less = log_sum + 16 * warp + g;
    const float2 query_less = make_float2(less[0], less[8]);
    const float2 norms = half_norms<Tiling>(kKeys ? x : y, a.norm_scale);
    Logs logs;
    log_features<Tiling>(y, directions, f, shared.offset, kKeys ? query_less : norms, 0.0f, logs);
    rows = settle_peaks<Tiling>(logs, rows, log_max, shared);
    store_factors<Tiling>(logs, rows, shared, y);
    log_features<Tiling>(x, directions, f, shared.offset, kKeys ? norms : query_less, -INFINITY,
                         logs);
    own_factors<Tiling>(logs, rows, shared, own);
    fade<Tiling>(shared, b);
#pragma unroll
    for (int n = 0; n < kWidth / 8; ++n) {
      store_pair(sums.at(16 * warp + g, 8 * n + 2 * c), Pair<T>(b[n][0], b[n][1]));
      store_pair(sums.at(16 * warp + g + 8, 8 * n + 2 * c), Pair<T>(b[n][2], b[n][3]));
    }
    return rows;
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

  // Gradients of values: weights of the later queries' g, and what the sums hold of them.
  __device__ __forceinline__ void write_value_gradients(const Factors& own, int begin,
                                                        int rows) const {
    Factors weights;
    {
      Logs products;
      dot_rows<Tiling, kGroups>([&](int k) { return own.left(k); }, f.groups(), y, products);
      keep_earlier<Tiling>(products, weights);
    }
#pragma unroll
    for (int column = 0; column < kWidth; column += Tiling::kColumns) {
      Columns gradients = {};
      add_product<Tiling, Tiling::kColumnGroups>(weights, kGroups, w, column, Tiling::kColumnGroups,
                                                 gradients);
      add_product<Tiling, Tiling::kColumnGroups>(own, f.groups(), sums, column,
                                                 Tiling::kColumnGroups, gradients);
      write(gradients, column, begin, rows, a.grad_v, key_head, a.part_v, a.packed_v);
    }
  }

  // u_i·w_j − e, where e belongs to the row (queries) or the column (keys) that is a query.
  __device__ __forceinline__ void pair_gradients(Factors& pairs) const {
    constexpr int kSteps = kWidth / 16;
    Logs products;
    dot_rows<Tiling, kSteps>([&](int k) { return load_left(u, 16 * warp, 16 * k); }, kSteps, w,
                             products);
#pragma unroll
    for (int n = 0; n < Tiling::kBlocks; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        products[n][i] -= kKeys ? e[8 * n + 2 * c + i % 2] : e[16 * warp + g + i / 2 * 8];
    }
    keep_earlier<Tiling>(products, pairs);
  }

  // ∂loss / ∂log feature of the warp's rows, own · (Σ_j pair_ij factor_jm + u_i·b_m − c a_m), and
  // the sums of its rows over the features.
  __device__ __forceinline__ void feature_gradients(const Factors& own, Factors& rounded,
                                                    float (&total)[2]) const {
    Factors pairs;
    pair_gradients(pairs);
    Logs gradients;
    dot_features<Tiling>(u, sums, f.groups(), gradients);
#pragma unroll
    for (int n = 0; n < Tiling::kBlocks; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        gradients[n][i] -=
            (kKeys ? 1.0f : e[16 * warp + g + i / 2 * 8]) * shared.faded[8 * n + 2 * c + i % 2];
    }
    add_product<Tiling, kGroups>(pairs, kGroups, y, 0, f.groups(), gradients);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      total[half] = 0;
#pragma unroll
      for (int n = 0; n < Tiling::kBlocks; ++n) {
        const float2 factor = own.pair[n][half].floats();
        const float first = gradients[n][2 * half] * factor.x;
        const float second = gradients[n][2 * half + 1] * factor.y;
        rounded.pair[n][half] = {first, second};
        total[half] += first + second;
      }
      total[half] = quad_sum(total[half]);
    }
  }

  __device__ __forceinline__ void write_row_gradients(const Factors& gradients,
                                                      const float (&total)[2], int begin,
                                                      int rows) const {
#pragma unroll
    for (int column = 0; column < kWidth; column += Tiling::kColumns) {
      Columns columns = {};
      add_product<Tiling, Tiling::kColumnGroups>(gradients, f.groups(), directions.top, column,
                                                 Tiling::kColumnGroups, columns);
      if constexpr (kKeys) {
        // A key's norm takes part in all its features; a query's cancels.
#pragma unroll
        for (int n = 0; n < Tiling::kColumns / 8; ++n) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const auto* pair = reinterpret_cast<const Pair<T>*>(
                x.at(16 * warp + g + 8 * half, column + 8 * n + 2 * c));
            const float2 key = pair->floats();
            columns[n][2 * half] -= 2 * a.norm_scale * total[half] * key.x;
            columns[n][2 * half + 1] -= 2 * a.norm_scale * total[half] * key.y;
          }
        }
      }
      write(columns, column, begin, rows, kKeys ? a.grad_k : a.grad_q, kKeys ? key_head : f.head,
            kKeys ? a.part_k : a.part_q, kKeys ? a.packed_k : a.packed_q);
    }
  }

  // The chunk's rows join the sums and the gradients of the features.
  __device__ __forceinline__ void add_chunk(int rows) {
    float sum[4] = {};
    if constexpr (kKeys)
      add_outer<Tiling>(y, w, rows, Column<T>{e}, b, sum);
    else
      add_outer<Tiling>(y, w, rows, Ones(), b, sum);
    if (c == 0) {
      shared.a[16 * warp + g] = shared.faded[16 * warp + g] + sum[0];
      shared.a[16 * warp + g + 8] = shared.faded[16 * warp + g + 8] + sum[2];
    }
    add_outer<Tiling>(u, x, rows, Ones(), grad_z, grad_log_alpha);
  }

  __device__ __forceinline__ void write_feature_gradients() const {
    const int64_t first = (int64_t{blockIdx.y} * 2 + kKeys) * a.total + f.first;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int m = 16 * warp + 8 * half + g;
      if (m >= f.count) continue;
      if (c == 0) a.grad_log_alpha[first + m] = 0.5f * grad_log_alpha[2 * half];
#pragma unroll
      for (int n = 0; n < kWidth / 8; ++n)
        store_two(a.grad_z + (first + m) * a.width, 8 * n + 2 * c, a.width, a.width % 2 == 0,
                  a.inner_scale * grad_z[n][2 * half], a.inner_scale * grad_z[n][2 * half + 1]);
    }
  }

  __device__ __forceinline__ void run() {
    load_chunk(0);
    load_directions<Tiling>(f, a.z, a.log_alpha, a.width, a.inner_scale, directions, shared);
    if (threadIdx.x < kTile) shared.a[threadIdx.x] = 0;
    for (int begin = 0; begin < a.tokens;) {
      wait_for_copies<0>();
      __syncthreads();
      Factors own, gradients;
      float total[2];
      const int rows = settle_factors(min(kTile, a.tokens - begin), own);
      __syncthreads();
      if constexpr (kKeys) write_value_gradients(own, begin, rows);
      feature_gradients(own, gradients, total);
      // Only this warp reads its rows of u, and is done with them.
      __syncwarp();
#pragma unroll
      for (int n = 0; n < Tiling::kBlocks; ++n) {
        store_pair(u.at(16 * warp + g, 8 * n + 2 * c), gradients.pair[n][0]);
        store_pair(u.at(16 * warp + g + 8, 8 * n + 2 * c), gradients.pair[n][1]);
      }
      write_row_gradients(gradients, total, begin, rows);
      __syncthreads();
      if (warp < f.groups()) add_chunk(rows);
      begin += rows;
      __syncthreads();
      if (begin < a.tokens) load_chunk(begin);
    }
    write_feature_gradients();
  }
};

}  // namespace dofla::cuda
