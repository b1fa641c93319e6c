// With D_i the denominator of row i, g_i its output's gradient and e_i = g_i·out_i, every pair j ≤
// i receives ∂loss / ∂log(φ̃_m(q_i) φ̃_m(k_j)) = ψ_im φ̃_m(k_j) (g_i·v_j − e_i), ψ_im = φ̃_m(q_i) /
// D_i. The gradients of queries sum over earlier keys; those of keys and values over later queries,
// which is the same with time running backwards. Each sweep owns rows x_i with vectors u_i and
// passes over rows y_j with vectors w_j:
//   queries:  x = q, u = g,  y = k, w = v, c = 1    keys:  x = k, u = v,  y = q, w = g, c = e
// and both are independent, so that one launch does them side by side.
#include <cmath>

#include "dofla/ops/cuda/launch.cuh"
#include "dofla/ops/cuda/linear_attention_chunk.cuh"

namespace dofla::cuda {
namespace {

struct BackwardArguments {
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
struct BackwardTiling : ChunkTiling<T, kWidth> {
  using Chunk = ChunkTiling<T, kWidth>;
  // Three blocks of one stage hide more of each other's waiting than two of two stages.
#ifdef TRY_TWO
  static constexpr int kStages = Chunk::kFast && kWidth <= 64 ? 2 : 1;
  static constexpr int kBlocksAtOnce = Chunk::kFast && kWidth <= 64 ? 2 : 1;
#else
  static constexpr int kStages = 1;
  static constexpr int kBlocksAtOnce = Chunk::kFast && kWidth <= 64 ? 3 : 1;
#endif
  static constexpr size_t kSharedBytes =
      (Chunk::kWideElements + (1 + kStages * 4) * Chunk::kElements) * sizeof(T) +
      kStages * 2 * Chunk::kTile * sizeof(float) + sizeof(ChunkShared<Chunk::kTile>);
};

// Rows in the order of a sweep.
template <class T>
struct Line {
  T* first;
  int64_t step;
  __device__ T* at(int position) const { return first + position * step; }
};

template <class T, bool kBackwards, class Rows>
__device__ __forceinline__ Line<T> line_of(const Rows& rows, int64_t b, int h, int tokens) {
  auto head = head_of<std::remove_const_t<T>>(rows, b, h);
  if (kBackwards) return {head + (tokens - 1) * rows.token_step, -rows.token_step};
  return {head, rows.token_step};
}

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

// u_i·w_j − e, where e belongs to the row (queries) or the column (keys) that is a query.
template <class Tiling, bool kKeys>
__device__ __forceinline__ void pair_gradients(typename Tiling::RowTile u,
                                               typename Tiling::RowTile w, const float* e,
                                               typename Tiling::Factors& pairs) {
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
  typename Tiling::Logs sums;
  constexpr int kSteps = Tiling::kWidth / 16;
  dot_rows<Tiling, kSteps>([&](int k) { return load_left(u, 16 * warp, 16 * k); }, kSteps, w, sums);
#pragma unroll
  for (int n = 0; n < Tiling::kBlocks; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      sums[n][i] -= kKeys ? e[8 * n + 2 * c + i % 2] : e[16 * warp + g + i / 2 * 8];
  }
  keep_earlier<Tiling>(sums, pairs);
}

// ∂loss / ∂log feature of the warp's rows: factor · (Σ_j pair_ij factor_jm + u_i·b_m − c a_m).
template <class Tiling, bool kKeys>
__device__ __forceinline__ void feature_gradients(const typename Tiling::Factors& pairs,
                                                  typename Tiling::RowTile factors,
                                                  typename Tiling::RowTile u,
                                                  typename Tiling::RowTile b, const float* e,
                                                  const typename Tiling::Factors& own, int groups,
                                                  const ChunkShared<Tiling::kTile>& shared,
                                                  typename Tiling::Logs& gradients) {
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
  dot_features<Tiling>(u, b, groups, gradients);
#pragma unroll
  for (int n = 0; n < Tiling::kBlocks; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      gradients[n][i] -=
          (kKeys ? 1.0f : e[16 * warp + g + i / 2 * 8]) * shared.faded[8 * n + 2 * c + i % 2];
  }
  add_product<Tiling, Tiling::kTile / 16>(pairs, Tiling::kTile / 16, factors, 0, groups, gradients);
#pragma unroll
  for (int n = 0; n < Tiling::kBlocks; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 factor = own.pair[n][half].floats();
      gradients[n][2 * half] *= factor.x;
      gradients[n][2 * half + 1] *= factor.y;
    }
  }
}

// Writes [16, columns] of the warp's rows below `rows`: to the result, or to the block's own part.
template <class Tiling, class T>
__device__ __forceinline__ void write_columns(const typename Tiling::Columns& sums, int column,
                                              int rows, int width, Line<T> to, bool paired) {
  const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = threadIdx.x / 32 * 16 + 8 * half + g;
    if (row >= rows) continue;
#pragma unroll
    for (int n = 0; n < Tiling::kColumns / 8; ++n)
      store_two(to.at(row), column + 8 * n + 2 * c, width, paired, sums[n][2 * half],
                sums[n][2 * half + 1]);
  }
}

template <class T, int kWidth, bool kKeys>
__device__ void sweep(const BackwardArguments& a) {
  using Tiling = BackwardTiling<T, kWidth>;
  using RowTile = typename Tiling::RowTile;
  constexpr int kTile = Tiling::kTile, kStages = Tiling::kStages;
  T* memory = reinterpret_cast<T*>(shared_memory());
  const typename Tiling::Wide directions(memory, kTile);
  const RowTile sums{memory + Tiling::kWideElements};
  const auto tile = [&](int stage, int which) {  // x, u, y, w
    return RowTile{sums.data + (1 + stage * 4 + which) * Tiling::kElements};
  };
  float* values = reinterpret_cast<float*>(tile(kStages, 0).data);
  const auto row_values = [&](int stage, int which) {  // log sums, e
    return values + (stage * 2 + which) * kTile;
  };
  auto& shared = *reinterpret_cast<ChunkShared<kTile>*>(row_values(kStages, 0));

  const BlockFeatures f = features_of_block(a.features, kTile, blockIdx.x);
  const int64_t b_index = blockIdx.y;
  const int h = f.head, key_head = h / a.group;
  const auto place = [&](int position) {  // in [B, H, T]
    return (b_index * a.heads + h) * a.tokens + (kKeys ? a.tokens - 1 - position : position);
  };
  const auto load_chunk = [&](int begin, int stage) {
    const auto load = [&](int which, const HeadRows& rows, int head) {
      const Line<const T> line = line_of<const T, kKeys>(rows, b_index, head, a.tokens);
      load_rows<kTile, kWidth, Tiling::kThreads>(tile(stage, which), line.at(begin), line.step,
                                                 a.tokens - begin, a.width, a.packed);
    };
    load(kKeys ? 2 : 0, a.q, h);
    load(kKeys ? 0 : 2, a.k, key_head);
    load(kKeys ? 1 : 3, a.v, key_head);
    load(kKeys ? 3 : 1, a.g, h);
    const int row = threadIdx.x;
    if (row < kTile) {
      const bool valid = begin + row < a.tokens;
      const int64_t at = valid ? place(begin + row) : 0;
      copy_4_bytes(row_values(stage, 0) + row, a.log_sum + at, valid);
      copy_4_bytes(row_values(stage, 1) + row, a.e + at, valid);
    }
    commit_copies();
  };
  const int64_t part = b_index * gridDim.x + blockIdx.x;
  const auto write = [&](const typename Tiling::Columns& columns, int column, int begin, int rows,
                         const HeadRowsOut& out, int head, float* parts, bool packed) {
    if (parts != nullptr) {
      const HeadRowsOut own = {parts, 0, 0, a.width};
      Line<float> line = line_of<float, kKeys>(own, 0, 0, a.tokens);
      line.first += part * a.tokens * a.width + begin * line.step;
      write_columns<Tiling>(columns, column, rows, a.width, line, a.width % 2 == 0);
    } else {
      Line<T> line = line_of<T, kKeys>(out, b_index, head, a.tokens);
      line.first += begin * line.step;
      write_columns<Tiling>(columns, column, rows, a.width, line, packed);
    }
  };

  int begin = 0, stage = 0;
  load_chunk(begin, stage);
  load_directions<Tiling>(f, a.z, a.log_alpha, a.width, a.inner_scale, directions, shared);
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
  typename Tiling::Values b = {}, grad_z = {};
  float grad_log_alpha[4] = {};
  float log_max = static_cast<int>(threadIdx.x) < f.count ? -INFINITY : 0.0f;
  if (threadIdx.x < kTile) shared.a[threadIdx.x] = 0;

  while (begin < a.tokens) {
    wait_for_copies<0>();
    __syncthreads();
    const RowTile x = tile(stage, 0), u = tile(stage, 1), y = tile(stage, 2), w = tile(stage, 3);
    const float* e = row_values(stage, 1);
    const float* log_sum = row_values(stage, 0) + 16 * warp + g;
    const float2 query_less = make_float2(log_sum[0], log_sum[8]);
    const float2 norms = half_norms<Tiling>(kKeys ? x : y, a.norm_scale);
    const RowTile factors = y;  // as soon as its log features are known
    int rows = min(kTile, a.tokens - begin);
    {
      typename Tiling::Logs logs;
      log_features<Tiling>(y, directions, f, shared.offset, kKeys ? query_less : norms, 0.0f, logs);
      rows = settle_peaks<Tiling>(logs, rows, log_max, shared);
      store_factors<Tiling>(logs, rows, shared, factors);
    }
    const int next = begin + rows;
    if (kStages == 2 && next < a.tokens) load_chunk(next, stage ^ 1);
    typename Tiling::Factors own;
    {
      typename Tiling::Logs logs;
      log_features<Tiling>(x, directions, f, shared.offset, kKeys ? norms : query_less, -INFINITY,
                           logs);
      own_factors<Tiling>(logs, rows, shared, own);
    }
    fade<Tiling>(shared, b);
#pragma unroll
    for (int n = 0; n < kWidth / 8; ++n) {
      store_pair(sums.at(16 * warp + g, 8 * n + 2 * c), Pair<T>(b[n][0], b[n][1]));
      store_pair(sums.at(16 * warp + g + 8, 8 * n + 2 * c), Pair<T>(b[n][2], b[n][3]));
    }
    __syncthreads();
    if constexpr (kKeys) {
      typename Tiling::Factors weights;
      {
        typename Tiling::Logs products;
        dot_rows<Tiling, kTile / 16>([&](int i) { return own.left(i); }, f.groups(), factors,
                                     products);
        keep_earlier<Tiling>(products, weights);
      }
#pragma unroll
      for (int column = 0; column < kWidth; column += Tiling::kColumns) {
        typename Tiling::Columns grad_v = {};
        add_product<Tiling, Tiling::kColumnGroups>(weights, kTile / 16, w, column,
                                                   Tiling::kColumnGroups, grad_v);
        add_product<Tiling, Tiling::kColumnGroups>(own, f.groups(), sums, column,
                                                   Tiling::kColumnGroups, grad_v);
        write(grad_v, column, begin, rows, a.grad_v, key_head, a.part_v, a.packed_v);
      }
    }
    typename Tiling::Factors gradient;
    float total[2] = {};
    {
      typename Tiling::Factors pairs;
      pair_gradients<Tiling, kKeys>(u, w, e, pairs);
      typename Tiling::Logs gradients;
      feature_gradients<Tiling, kKeys>(pairs, factors, u, sums, e, own, f.groups(), shared,
                                       gradients);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int n = 0; n < Tiling::kBlocks; ++n) {
          gradient.pair[n][half] = {gradients[n][2 * half], gradients[n][2 * half + 1]};
          total[half] += gradients[n][2 * half] + gradients[n][2 * half + 1];
        }
        total[half] = quad_sum(total[half]);
      }
    }
    // Only this warp reads its rows of u, and is done with them.
    __syncwarp();
#pragma unroll
    for (int n = 0; n < Tiling::kBlocks; ++n) {
      store_pair(u.at(16 * warp + g, 8 * n + 2 * c), gradient.pair[n][0]);
      store_pair(u.at(16 * warp + g + 8, 8 * n + 2 * c), gradient.pair[n][1]);
    }
#pragma unroll
    for (int column = 0; column < kWidth; column += Tiling::kColumns) {
      typename Tiling::Columns grad_x = {};
      add_product<Tiling, Tiling::kColumnGroups>(gradient, f.groups(), directions.top, column,
                                                 Tiling::kColumnGroups, grad_x);
      if (kKeys) {
        // A key's norm takes part in all its features; a query's cancels.
#pragma unroll
        for (int n = 0; n < Tiling::kColumns / 8; ++n) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const float2 key = reinterpret_cast<const Pair<T>*>(
                                   x.at(16 * warp + g + 8 * half, column + 8 * n + 2 * c))
                                   ->floats();
            grad_x[n][2 * half] -= 2 * a.norm_scale * total[half] * key.x;
            grad_x[n][2 * half + 1] -= 2 * a.norm_scale * total[half] * key.y;
          }
        }
      }
      write(grad_x, column, begin, rows, kKeys ? a.grad_k : a.grad_q, kKeys ? key_head : h,
            kKeys ? a.part_k : a.part_q, kKeys ? a.packed_k : a.packed_q);
    }
    __syncthreads();
    if (warp < f.groups()) {
      float sum[4] = {};
      if constexpr (kKeys)
        add_outer<Tiling>(factors, w, rows, Column<T>{e}, b, sum);
      else
        add_outer<Tiling>(factors, w, rows, Ones(), b, sum);
      if (c == 0) {
        shared.a[16 * warp + g] = shared.faded[16 * warp + g] + sum[0];
        shared.a[16 * warp + g + 8] = shared.faded[16 * warp + g + 8] + sum[2];
      }
      add_outer<Tiling>(u, x, rows, Ones(), grad_z, grad_log_alpha);
    }
    if (kStages == 1 && next < a.tokens) {
      __syncthreads();
      load_chunk(next, stage);
    }
    begin = next;
    stage = kStages == 2 ? stage ^ 1 : 0;
  }

  const int64_t first = (b_index * 2 + kKeys) * a.total + f.first;
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

template <class T, int kWidth>
__global__ void __launch_bounds__((BackwardTiling<T, kWidth>::kThreads),
                                  (BackwardTiling<T, kWidth>::kBlocksAtOnce))
    linear_attention_backward(const __grid_constant__ BackwardArguments a) {
  // The longer sweep goes first.
  if (blockIdx.z == 0)
    sweep<T, kWidth, true>(a);
  else
    sweep<T, kWidth, false>(a);
}

// to = Σ_p parts[p], in order
__global__ void add_up(const float* __restrict__ parts, int count, int64_t size,
                       float* __restrict__ to) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i >= size) return;
  float sum = 0;
#pragma unroll 8
  for (int p = 0; p < count; ++p) sum += parts[p * size + i];
  to[i] = sum;
}

template <class T>
cudaError_t launch_sweeps(const LinearAttentionShape& s, const BackwardArguments& a, int64_t parts,
                          cudaStream_t stream) {
  return with_width(s.width, [&](auto width) {
    using Tiling = BackwardTiling<T, decltype(width)::value>;
    const dim3 grid(static_cast<unsigned>(parts), static_cast<unsigned>(s.batch), 2);
    return launch(linear_attention_backward<T, Tiling::kWidth>, grid, Tiling::kThreads,
                  Tiling::kSharedBytes, stream, a);
  });
}

// Which gradients are sums over several blocks, and where in the workspace everything lies.
struct Workspace {
  Workspace(const LinearAttentionShape& s, const FeatureParts& f, void* memory)
      : at(static_cast<float*>(memory)) {
    const bool query_parts = f.count > s.heads, key_parts = f.count > s.key_heads;
    const int64_t part = s.batch * f.count * s.tokens * s.width;
    e = take(s.batch * s.heads * s.tokens);
    grad_z = take(2 * s.batch * f.total * s.width);
    grad_log_alpha = take(2 * s.batch * f.total);
    q = query_parts ? take(part) : nullptr;
    k = key_parts ? take(part) : nullptr;
    v = key_parts ? take(part) : nullptr;
  }
  float* take(int64_t count) {
    float* taken = at == nullptr ? nullptr : at + floats;
    floats += (count + 3) / 4 * 4;
    return taken;
  }
  float* at;
  int64_t floats = 0;
  float *e, *grad_z, *grad_log_alpha, *q, *k, *v;
};

}  // namespace

int64_t linear_attention_backward_workspace_bytes(const LinearAttentionShape& s,
                                                  const LinearAttentionFeatures& features) {
  return Workspace(s, feature_parts(s, features.counts), nullptr).floats * 4;
}

cudaError_t launch_linear_attention_backward(const LinearAttentionShape& s,
                                             const LinearAttentionFeatures& features,
                                             const HeadRows& q, const HeadRows& k,
                                             const HeadRows& v, const HeadRows& out,
                                             const float* log_sum, const HeadRows& grad_out,
                                             const LinearAttentionGradientsOut& gradients,
                                             void* workspace, cudaStream_t stream) {
  const FeatureParts f = feature_parts(s, features.counts);
  if (!f.valid) return cudaErrorInvalidValue;
  const Workspace room(s, f, workspace);
  BackwardArguments a = {};
  a.q = q, a.k = k, a.v = v, a.g = grad_out;
  a.grad_q = gradients.q, a.grad_k = gradients.k, a.grad_v = gradients.v;
  a.part_q = room.q, a.part_k = room.k, a.part_v = room.v;
  a.log_sum = log_sum, a.e = room.e;
  a.features = f.table;
  a.z = features.z, a.log_alpha = features.log_alpha;
  a.grad_z = room.grad_z, a.grad_log_alpha = room.grad_log_alpha;
  a.heads = static_cast<int>(s.heads), a.group = static_cast<int>(s.heads / s.key_heads);
  a.tokens = static_cast<int>(s.tokens), a.width = static_cast<int>(s.width);
  a.total = static_cast<int>(f.total);
  const double width = static_cast<double>(s.width);
  a.inner_scale = static_cast<float>(std::pow(width, -0.25));
  a.norm_scale = static_cast<float>(features.subtract_norm ? 0.5 / std::sqrt(width) : 0.0);
  a.packed = in_packs(q, s.element, s.width) && in_packs(k, s.element, s.width) &&
             in_packs(v, s.element, s.width) && in_packs(grad_out, s.element, s.width);
  a.packed_q = in_packs(gradients.q, s.element, s.width);
  a.packed_k = in_packs(gradients.k, s.element, s.width);
  a.packed_v = in_packs(gradients.v, s.element, s.width);

  const PartShape rows = {s.element, s.batch, s.heads, f.count, s.tokens, s.width};
  cudaError_t status = launch_row_dots(rows, grad_out, out, room.e, stream);
  const auto then = [&](cudaError_t next) { status = next; };
  if (status == cudaSuccess)
    then(s.element == Element::kF32 ? launch_sweeps<float>(s, a, f.count, stream)
                                    : launch_sweeps<__nv_bfloat16>(s, a, f.count, stream));
  const int parts = static_cast<int>(2 * s.batch);
  const auto sum = [&](const float* from, int64_t size, float* to) {
    if (status == cudaSuccess)
      then(launch(add_up, dim3(blocks_for(size, 128)), 128, 0, stream, from, parts, size, to));
  };
  sum(room.grad_z, f.total * s.width, gradients.z);
  sum(room.grad_log_alpha, f.total, gradients.log_alpha);
  if (status == cudaSuccess && room.q != nullptr)
    then(launch_sum_parts(rows, f.parts, room.q, gradients.q, stream));
  if (status == cudaSuccess && room.k != nullptr) {
    PartTable shared_by;  // parts of all query heads that share a key head
    for (int64_t h = 0; h <= s.key_heads; ++h) shared_by.first[h] = f.parts.first[h * a.group];
    PartShape key_rows = rows;
    key_rows.heads = s.key_heads;
    then(launch_sum_parts(key_rows, shared_by, room.k, gradients.k, stream));
    if (status == cudaSuccess)
      then(launch_sum_parts(key_rows, shared_by, room.v, gradients.v, stream));
  }
  return status;
}

}  // namespace dofla::cuda
