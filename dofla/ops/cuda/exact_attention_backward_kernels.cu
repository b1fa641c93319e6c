// As in softmax_attention_backward_kernels.cu: with P the probabilities, g the gradient of the
// output and e_i = g_i·out_i, a logit's gradient is P_ij (g_i·v_j − e_i). A query is in one
// segment, and its gradient is that segment's. A key is in the segments from the one that it came
// in to the one that it left in: each writes its part, and a last kernel adds them up in order.
#include <algorithm>

#include "dofla/ops/cuda/attention_parts.h"
#include "dofla/ops/cuda/exact_key_parts.cuh"
#include "dofla/ops/cuda/gradient_rows.cuh"
#include "dofla/ops/cuda/launch.cuh"

namespace dofla::cuda {
namespace {

constexpr int kMostWarps = kMostBackwardWarps, kOtherTile = 32, kBlocks = kOtherTile / 8;
constexpr int kTiles = kOtherTile / kRowTile;
constexpr float kLog2E = 1.4426950408889634f;

// P and the gradients of logits, from the products q·k and g·v.
__device__ __forceinline__ void weigh(bool seen, float log2_scale, float log, float e,
                                      float& weight, float& gradient) {
  weight = seen ? fast_exp2(fmaf(weight, log2_scale, -log * kLog2E)) : 0.0f;
  gradient = weight * (gradient - e);
}

// The gradients of up to four row tiles of a segment's queries.
template <class T, int kWidth>
__global__ void __launch_bounds__(32 * kMostWarps)
    exact_query_gradients(const __grid_constant__ ExactBackwardArguments a) {
  constexpr int kStride = kWidth + 8;
  using Rows = Tile<T, kStride>;
  const int warps = blockDim.x / 32, warp_row = threadIdx.x / 32 * kRowTile;
  const int b = blockIdx.y / a.key_heads, key_head = blockIdx.y % a.key_heads;
  const Segment segment = a.segments.at(b, key_head, a.blocks.segment());
  if (segment.queries == 0) return;
  const int first_tile = a.blocks.chunk() * warps;
  T* shared = reinterpret_cast<T*>(shared_memory());
  const Rows queries{shared}, grads{shared + warps * kRowTile * kStride};
  const Positions positions{
      reinterpret_cast<int2*>(shared + (2 * warps * kRowTile + 4 * kOtherTile) * kStride)};
  const int count = segment.count();
  find_positions(segment, 0, count, positions);
  __syncthreads();
  const auto stage = [&](int tile, int which) {
    return Rows{shared + (2 * warps * kRowTile + (tile % 2 * 2 + which) * kOtherTile) * kStride};
  };
  const auto load_keys = [&](int tile) {
    load_segment_keys<T, kWidth>(stage(tile, 0), kOtherTile, positions, tile * kOtherTile, count,
                                 a.k, head_of<T>(a.k, b, key_head), a.width, a.packed);
    load_segment_keys<T, kWidth>(stage(tile, 1), kOtherTile, positions, tile * kOtherTile, count,
                                 a.v, head_of<T>(a.v, b, key_head), a.width, a.packed);
    commit_copies();
  };
  load_segment_queries<T, kWidth>(queries, warps * kRowTile, segment, a.group, first_tile, a.q, b,
                                  key_head, a.width, a.packed);
  load_segment_queries<T, kWidth>(grads, warps * kRowTile, segment, a.group, first_tile, a.g, b,
                                  key_head, a.width, a.packed);
  load_keys(0);

  const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
  const QueryRow mine = query_row(segment, a.group, first_tile, warp_row);
  const int head = key_head * a.group + mine.head;
  float log[2] = {}, e[2] = {};
  int time[2] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int query = mine.query + g + 8 * half;
    if (!mine.exists || query >= segment.queries) continue;
    const int64_t of_all = int64_t{b} * a.key_heads * a.group + head;
    const int64_t row = of_all * a.tokens + segment.first + query;
    log[half] = a.log_sum[row], e[half] = a.e[row], time[half] = segment.time_of(query);
  }
  wait_for_copies<0>();
  __syncthreads();
  float grad_q[kWidth / 8][4] = {};
  const int tiles = (count + kOtherTile - 1) / kOtherTile;
  for (int tile = 0; tile < tiles; ++tile) {
    if (tile + 1 < tiles) load_keys(tile + 1);
    if (mine.exists && tile * kOtherTile <= segment.last_seen(mine.query + kRowTile - 1)) {
      float weight[kBlocks][4] = {}, gradient[kBlocks][4] = {};
      dot_rows<kWidth>(queries, warp_row, stage(tile, 0), weight);
      dot_rows<kWidth>(grads, warp_row, stage(tile, 1), gradient);
#pragma unroll
      for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int position = tile * kOtherTile + 8 * n + 2 * c + i % 2;
          const int query = mine.query + g + i / 2 * 8;
          weigh(query < segment.queries && position <= segment.last_seen(query) &&
                    positions.leaves(position) >= time[i / 2],
                a.scale * kLog2E, log[i / 2], e[i / 2], weight[n][i], gradient[n][i]);
        }
      }
      RoundedSums<T, kBlocks> rounded;
      round_sums(gradient, rounded);
      add_rows<kWidth>(rounded, stage(tile, 0), grad_q);
    }
    wait_for_copies<0>();
    __syncthreads();
  }
  if (mine.exists)
    write_rows<T, kWidth>(grad_q, a.scale, mine.query, segment.queries, a.width, a.packed_q,
                          head_of<T>(a.grad_q, b, head) + segment.first * a.grad_q.token_step,
                          a.grad_q.token_step);
}

// The parts of a segment in the gradients of 64 of its positions.
template <class T, int kWidth>
__global__ void __launch_bounds__(32 * kMostWarps)
    exact_key_gradients(const __grid_constant__ ExactBackwardArguments a) {
  constexpr int kStride = kWidth + 8, kOwnTile = kRowTile * kMostWarps;
  using Rows = Tile<T, kStride>;
  __shared__ float other_log[2][kOtherTile], other_e[2][kOtherTile];
  const int warp_row = threadIdx.x / 32 * kRowTile, n_segment = a.blocks.segment();
  const int b = blockIdx.y / a.key_heads, key_head = blockIdx.y % a.key_heads;
  const Segment segment = a.segments.at(b, key_head, n_segment);
  const int first = a.blocks.chunk() * kOwnTile;
  if (segment.queries == 0 || first >= segment.count()) return;
  T* shared = reinterpret_cast<T*>(shared_memory());
  const Rows keys{shared}, values{shared + kOwnTile * kStride};
  const Positions positions{
      reinterpret_cast<int2*>(shared + (2 * kOwnTile + 4 * kOtherTile) * kStride)};
  const int count = segment.count(), end = min(count, first + kOwnTile);
  find_positions(segment, first, end, positions);
  __syncthreads();
  const auto stage = [&](int pass, int which) {
    return Rows{shared + (2 * kOwnTile + (pass % 2 * 2 + which) * kOtherTile) * kStride};
  };
  const auto load_queries = [&](int pass) {
    const int tile = pass * kTiles;
    load_segment_queries<T, kWidth>(stage(pass, 0), kOtherTile, segment, a.group, tile, a.q, b,
                                    key_head, a.width, a.packed);
    load_segment_queries<T, kWidth>(stage(pass, 1), kOtherTile, segment, a.group, tile, a.g, b,
                                    key_head, a.width, a.packed);
    if (threadIdx.x < kOtherTile) {
      const QueryRow at = query_row(segment, a.group, tile, threadIdx.x);
      const int64_t head = int64_t{b} * a.key_heads * a.group + key_head * a.group + at.head;
      const int64_t row = head * a.tokens + segment.first + at.query;
      other_log[pass % 2][threadIdx.x] = at.exists ? a.log_sum[row] : 0.0f;
      other_e[pass % 2][threadIdx.x] = at.exists ? a.e[row] : 0.0f;
    }
    commit_copies();
  };
  load_segment_keys<T, kWidth>(keys, kOwnTile, positions, first, end, a.k,
                               head_of<T>(a.k, b, key_head), a.width, a.packed);
  load_segment_keys<T, kWidth>(values, kOwnTile, positions, first, end, a.v,
                               head_of<T>(a.v, b, key_head), a.width, a.packed);
  load_queries(0);
  wait_for_copies<0>();
  __syncthreads();

  const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
  float grad_k[kWidth / 8][4] = {}, grad_v[kWidth / 8][4] = {};
  const int own[2] = {first + warp_row + g, first + warp_row + g + 8};
  const int leaves[2] = {positions.leaves(own[0]), positions.leaves(own[1])};
  const int passes = (a.group * segment.tiles() * kRowTile + kOtherTile - 1) / kOtherTile;
  for (int pass = 0; pass < passes; ++pass) {
    if (pass + 1 < passes) load_queries(pass + 1);
    if (first + warp_row < count) {
      float weight[kBlocks][4] = {}, gradient[kBlocks][4] = {};
      dot_rows<kWidth>(keys, warp_row, stage(pass, 0), weight);
      dot_rows<kWidth>(values, warp_row, stage(pass, 1), gradient);
#pragma unroll
      for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int column = 8 * n + 2 * c + j;
          const QueryRow at = query_row(segment, a.group, pass * kTiles, column);
          const float log = other_log[pass % 2][column], e = other_e[pass % 2][column];
#pragma unroll
          for (int half = 0; half < 2; ++half)
            weigh(at.exists && own[half] <= segment.last_seen(at.query) &&
                      leaves[half] >= segment.time_of(at.query),
                  a.scale * kLog2E, log, e, weight[n][2 * half + j], gradient[n][2 * half + j]);
        }
      }
      RoundedSums<T, kBlocks> rounded;
      round_sums(weight, rounded);
      add_rows<kWidth>(rounded, stage(pass, 1), grad_v);
      round_sums(gradient, rounded);
      add_rows<kWidth>(rounded, stage(pass, 0), grad_k);
    }
    wait_for_copies<0>();
    __syncthreads();
  }
  const int64_t at = a.part_row(b, key_head, n_segment) * a.width;
  write_rows<T, kWidth>(grad_k, a.scale, first + warp_row, count, a.width, a.width % 2 == 0,
                        static_cast<T*>(a.part_k) + at, a.width);
  write_rows<T, kWidth>(grad_v, 1.0f, first + warp_row, count, a.width, a.width % 2 == 0,
                        static_cast<T*>(a.part_v) + at, a.width);
}

template <class T, int kWidth>
cudaError_t launch_roles(const ExactKeysShape& s, ExactBackwardArguments a, cudaStream_t stream) {
  const auto run = [&](auto kernel, int warps, SegmentBlocks blocks) {
    a.blocks = blocks;
    const size_t bytes =
        (2 * warps * kRowTile + 4 * kOtherTile) * (kWidth + 8) * sizeof(T) + position_bytes(s);
    return launch(kernel, grid_of(s, blocks), 32 * warps, bytes, stream, a);
  };
  const int64_t full = std::min(s.most_held(), s.keys);
  const int own = kRowTile * kMostWarps;
  const int warps =
      std::min(kMostWarps, row_tiles(s, std::min<int64_t>(s.queries, kTokensTogether)));
  cudaError_t status =
      run(exact_query_gradients<T, kWidth>, warps,
          {chunks(row_tiles(s, full), warps), chunks(row_tiles(s, kTokensTogether), warps)});
  if (status == cudaSuccess)
    status = run(exact_key_gradients<T, kWidth>, kMostWarps,
                 {chunks(full, own), chunks(s.most_held() - s.block + kTokensTogether, own)});
  if (status != cudaSuccess) return status;
  const dim3 grid(static_cast<unsigned>(chunks(s.keys, kMostWarps)),
                  static_cast<unsigned>(s.batch * s.key_heads));
  return launch(sum_key_parts<T>, grid, 32 * kMostWarps, 0, stream, a);
}

// Rows of the parts of a head.
int64_t part_rows(const ExactKeysShape& s, const KeyCache& cache) {
  return cache.limit + cache.rounds * (cache.limit - s.block + kTokensTogether);
}
int64_t part_rows(const ExactKeysShape& s) {
  int64_t rows = 0;
  for (int64_t h = 0; h < s.key_heads; ++h) rows += part_rows(s, s.cache[h]);
  return rows;
}
int64_t part_bytes_of(const ExactKeysShape& s) {
  return s.batch * part_rows(s) * s.width * (s.element == Element::kF32 ? 4 : 2);
}

}  // namespace

int64_t exact_attention_backward_workspace_bytes(const ExactKeysShape& s) {
  return 2 * part_bytes_of(s) + s.batch * s.heads * s.queries * 4;
}

cudaError_t launch_exact_attention_backward(const ExactKeysShape& s, const HeadRows& q,
                                            const HeadRows& k, const HeadRows& v,
                                            const KeptKeys& kept, const HeadRows& out,
                                            const float* log_sum, const HeadRows& grad_out,
                                            const ExactAttentionGradientsOut& gradients,
                                            void* workspace, cudaStream_t stream) {
  if (!valid(s) || s.queries != s.keys) return cudaErrorInvalidValue;
  ExactBackwardArguments a = {};
  a.q = q, a.k = k, a.v = v, a.g = grad_out;
  a.grad_q = gradients.q, a.grad_k = gradients.k, a.grad_v = gradients.v;
  a.segments = segments_of(s, kept);
  a.key_heads = static_cast<int>(s.key_heads), a.group = static_cast<int>(s.heads / s.key_heads);
  a.tokens = static_cast<int>(s.queries), a.width = static_cast<int>(s.width);
  for (int64_t h = 0; h < s.key_heads; ++h) {
    a.first_row[h] = static_cast<int32_t>(a.rows);
    a.rows += part_rows(s, s.cache[h]);
  }
  a.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(s.width)));
  a.packed = in_packs(q, s.element, s.width) && in_packs(k, s.element, s.width) &&
             in_packs(v, s.element, s.width) && in_packs(grad_out, s.element, s.width);
  a.packed_q = in_packs(gradients.q, s.element, s.width);
  char* const parts = static_cast<char*>(workspace);
  a.part_k = parts, a.part_v = parts + part_bytes_of(s);
  float* e = reinterpret_cast<float*>(parts + 2 * part_bytes_of(s));
  a.log_sum = log_sum, a.e = e;
  const cudaError_t status = launch_row_dots(
      {s.element, s.batch, s.heads, s.heads, s.queries, s.width}, grad_out, out, e, stream);
  if (status != cudaSuccess) return status;
  return with_width(s.width, [&](auto width) {
    constexpr int kWidth = decltype(width)::value;
    return s.element == Element::kF32 ? launch_roles<float, kWidth>(s, a, stream)
                                      : launch_roles<__nv_bfloat16, kWidth>(s, a, stream);
  });
}

}  // namespace dofla::cuda
