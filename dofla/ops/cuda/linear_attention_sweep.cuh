// One sweep of the linear attention's backward: equations (7) and (8) of docs/kernels.md. The
// gradients of queries sum over earlier keys; those of keys and values sum over later queries,
// which is the same with time running backwards, also in blocks, of which T is a whole number. Each
// sweep owns rows x_i with vectors u_i and passes over rows y_j with vectors w_j:
//   queries:  x = q, u = g,  y = k, w = v, c = 1    keys:  x = k, u = v,  y = q, w = g, c = e
#pragma once

#include "dofla/ops/cuda/linear_attention_sweep_rows.cuh"

namespace dofla::cuda {

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
struct Sweep : SweepRows<T, kWidth, kKeys> {
  using Rows = SweepRows<T, kWidth, kKeys>;
  using Rows::key_directions, Rows::query_directions, Rows::sums, Rows::x, Rows::u, Rows::y,
      Rows::w;
  using Rows::kTile, Rows::a, Rows::f, Rows::key_head, Rows::warp, Rows::g, Rows::c;
  using Rows::log_sum, Rows::e, Rows::shared;
  using typename Rows::Tiling, typename Rows::Columns;
  using Factors = typename Tiling::Factors;
  using Logs = typename Tiling::Logs;
  static constexpr int kGroups = kTile / 16;

  // Of this thread: sums over rows and gradients of its warp's features, the peak of one feature.
  typename Tiling::Values b = {}, grad_directions = {};
  float grad_log_alpha[4] = {};
  float grad_norm = 0;  // of η, from the rows that this lane's quad has
  float norm_scale;     // of |k|² in log φ̃(k)
  float log_max;

  __device__ __forceinline__ Sweep(const LinearBackwardArguments& arguments, T* memory)
      : Rows(arguments, memory),
        norm_scale(arguments.norm_weight == nullptr
                       ? arguments.norm_scale
                       : arguments.norm_scale * arguments.norm_weight[key_head]),
        log_max(static_cast<int>(threadIdx.x) < f.count ? -INFINITY : 0.0f) {}

  // Replaces y by its factors relative to new peaks, computes those of the warp's rows of x, and
  // rescales the sums. Returns how many of the `rows` rows belong to the chunk.
  __device__ __forceinline__ int settle_factors(int rows, Factors& own) {
    const float* less = log_sum + 16 * warp + g;
    const float2 query_less = make_float2(less[0], less[8]);
    const float2 key_less = half_norms<Tiling>(kKeys ? x : y, norm_scale);
    Logs logs;
    log_features<Tiling>(y, kKeys ? query_directions : key_directions, f, shared.offset,
                         kKeys ? query_less : key_less, 0.0f, logs);
    rows = settle_peaks<Tiling>(logs, rows, a.block, log_max, shared);
    store_factors<Tiling>(logs, rows, shared, y);
    log_features<Tiling>(x, kKeys ? key_directions : query_directions, f, shared.offset,
                         kKeys ? key_less : query_less, -INFINITY, logs);
    own_factors<Tiling>(logs, rows, shared, own);
    fade<Tiling>(shared, b);
#pragma unroll
    for (int n = 0; n < kWidth / 8; ++n) {
      store_pair(sums.at(16 * warp + g, 8 * n + 2 * c), Pair<T>(b[n][0], b[n][1]));
      store_pair(sums.at(16 * warp + g + 8, 8 * n + 2 * c), Pair<T>(b[n][2], b[n][3]));
    }
    return rows;
  }

  // Gradients of values: the g of later queries of this chunk, weighted, and those in the sums.
  __device__ __forceinline__ void write_value_gradients(const Factors& own, int begin,
                                                        int rows) const {
    Factors weights;
    {
      Logs products;
      dot_rows<Tiling, kGroups>([&](int k) { return own.left(k); }, f.groups(), y, products);
      keep_earlier<Tiling>(products, a.block, weights);
    }
#pragma unroll
    for (int column = 0; column < kWidth; column += Tiling::kColumns) {
      Columns gradients = {};
      add_product<Tiling, Tiling::kColumnGroups>(weights, kGroups, w, column, Tiling::kColumnGroups,
                                                 gradients);
      add_product<Tiling, Tiling::kColumnGroups>(own, f.groups(), sums, column,
                                                 Tiling::kColumnGroups, gradients);
      this->write(gradients, column, begin, rows, a.grad_v, key_head, a.part_v, a.packed_v);
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
    keep_earlier<Tiling>(products, a.block, pairs);
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
      add_product<Tiling, Tiling::kColumnGroups>(gradients, f.groups(),
                                                 kKeys ? key_directions.top : query_directions.top,
                                                 column, Tiling::kColumnGroups, columns);
      if constexpr (kKeys) {
        // A key's norm takes part in all its features; a query's cancels.
#pragma unroll
        for (int n = 0; n < Tiling::kColumns / 8; ++n) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const auto* pair = reinterpret_cast<const Pair<T>*>(
                x.at(16 * warp + g + 8 * half, column + 8 * n + 2 * c));
            const float2 key = pair->floats();
            columns[n][2 * half] -= 2 * norm_scale * total[half] * key.x;
            columns[n][2 * half + 1] -= 2 * norm_scale * total[half] * key.y;
          }
        }
      }
      this->write(columns, column, begin, rows, kKeys ? a.grad_k : a.grad_q,
                  kKeys ? key_head : f.head, kKeys ? a.part_k : a.part_q,
                  kKeys ? a.packed_k : a.packed_q);
    }
  }

  // Adds the chunk's rows to the sums and to the gradients of the features.
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
    add_outer<Tiling>(u, x, rows, Ones(), grad_directions, grad_log_alpha);
  }

  // The gradient of η from the rows of all warps, once a block, in a fixed order.
  __device__ __forceinline__ void write_norm_gradient() const {
    float sum = c == 0 ? grad_norm : 0.0f;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kWholeWarp, sum, step);
    if (threadIdx.x % 32 == 0) shared.peak[warp] = sum;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int w = 1; w < Tiling::kWarps; ++w) sum += shared.peak[w];
    a.grad_norm[int64_t{blockIdx.y} * gridDim.x + blockIdx.x] = -sum;
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
        store_two(a.grad_directions + (first + m) * a.width, 8 * n + 2 * c, a.width,
                  a.width % 2 == 0, a.inner_scale * grad_directions[n][2 * half],
                  a.inner_scale * grad_directions[n][2 * half + 1]);
    }
  }

  __device__ __forceinline__ void run() {
    this->load_chunk(0);
    load_directions<Tiling>(f, a.z, f.own, a.width, a.inner_scale, key_directions);
    if (a.u != nullptr)
      load_directions<Tiling>(f, a.u, f.first, a.width, a.inner_scale, query_directions);
    load_offsets<Tiling>(f, a.log_alpha, shared);
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
      if constexpr (kKeys)
        if (a.grad_norm != nullptr) {
          const float2 norms = half_norms<Tiling>(x, a.norm_scale);
          grad_norm += total[0] * norms.x + total[1] * norms.y;
        }
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
      if (begin < a.tokens) this->load_chunk(begin);
    }
    write_feature_gradients();
    if constexpr (kKeys)
      if (a.grad_norm != nullptr) write_norm_gradient();
  }
};

}  // namespace dofla::cuda
