// The forward, chunk by chunk. A head with more features than fit a block is divided among several
// blocks, each with the whole attention over its own features; their outputs are merged afterwards.
// Where sequences and heads are too few to fill the GPU, a sequence is cut into segments: first the
// sums of each, then the sums of all that precede it, then all segments in parallel.
#include <algorithm>

#include "dofla/ops/cuda/launch.cuh"
#include "dofla/ops/cuda/linear_attention_output.cuh"
#include "dofla/ops/cuda/linear_attention_segments.cuh"

namespace dofla::cuda {
namespace {

struct ForwardArguments {
  HeadRows q, k, v;
  HeadRowsOut out;
  float* log_sum;  // [B, H, T] or null
  FeatureTable features;
  const float *z, *log_alpha;
  const float *u, *norm_weight;       // of untied features, or null
  LinearAttentionSums before, after;  // [B, segments, ΣM], or null
  int32_t own_tokens[kMostHeads];     // of every key head
  int heads, group, tokens, width, total, block;
  int segments, segment_tokens;
  float inner_scale, norm_scale;
  bool packed, packed_out;
  float* parts;      // [B, P, T, D] when a head has several parts, or null
  float* part_logs;  // [B, P, T]
};

template <class Tiling, class T>
__host__ __device__ constexpr size_t forward_shared_bytes() {
  return (Tiling::kWideElements + Tiling::kStages * 3 * Tiling::kElements) * sizeof(T) +
         sizeof(ChunkShared<Tiling::kTile>);
}

template <class T, int kWidth, bool kOutput>
__global__ void __launch_bounds__((ChunkTiling<T, kWidth>::kThreads),
                                  sizeof(T) == 2 ? (kWidth <= 64 ? 3 : 1) : 1)
    linear_attention(const __grid_constant__ ForwardArguments a) {
  using Tiling = ChunkTiling<T, kWidth>;
  using RowTile = typename Tiling::RowTile;
  T* memory = reinterpret_cast<T*>(shared_memory());
  const typename Tiling::Wide directions(memory, Tiling::kTile);
  const auto tile = [&](int stage, int which) {  // queries, keys, values
    return RowTile{memory + Tiling::kWideElements + (stage * 3 + which) * Tiling::kElements};
  };
  auto& shared = *reinterpret_cast<ChunkShared<Tiling::kTile>*>(tile(Tiling::kStages, 0).data);

  const BlockFeatures f = features_of_block(a.features, Tiling::kTile, blockIdx.x);
  // Query heads that share a state see the same sums of keys: the first of them writes them.
  const bool writes_sums = f.head % a.features.sharing == 0;
  if (!kOutput && !writes_sums) return;
  const int64_t b_index = blockIdx.y;
  const int h = f.head, end = min((static_cast<int>(blockIdx.z) + 1) * a.segment_tokens,
                                  a.own_tokens[h / a.group]);
  const int64_t first_sum = (b_index * a.segments + blockIdx.z) * a.total + f.own;
  const T* q = head_of<T>(a.q, b_index, h);
  const T* k = head_of<T>(a.k, b_index, h / a.group);
  const T* v = head_of<T>(a.v, b_index, h / a.group);
  const auto load_chunk = [&](int begin, int stage) {
    const auto load = [&](int which, const T* head, int64_t step) {
      load_rows<Tiling::kTile, kWidth, Tiling::kThreads>(tile(stage, which), head + begin * step,
                                                         step, end - begin, a.width, a.packed);
    };
    if (kOutput) load(0, q, a.q.token_step);
    load(1, k, a.k.token_step);
    load(2, v, a.v.token_step);
    commit_copies();
  };

  int begin = blockIdx.z * a.segment_tokens, stage = 0;
  load_chunk(begin, stage);
  load_directions<Tiling>(f, a.z, f.own, a.width, a.inner_scale, directions);
  load_offsets<Tiling>(f, a.log_alpha, shared);
  const typename Tiling::Wide query_directions(
      a.u == nullptr ? memory : after_shared<T>(shared_memory(), forward_shared_bytes<Tiling, T>()),
      Tiling::kTile);
  float norm_scale = a.norm_scale;
  if (a.u != nullptr) {
    if (kOutput) load_directions<Tiling>(f, a.u, f.first, a.width, a.inner_scale, query_directions);
    norm_scale *= a.norm_weight[h / a.features.sharing];
  }
  typename Tiling::Values b;
  float log_max = 0;
  read_sums<Tiling>(a.before, first_sum, f, a.width, b, log_max, shared);
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;

  while (begin < end) {
    wait_for_copies<0>();
    __syncthreads();
    typename Tiling::Logs log_k, log_q;
    log_features<Tiling>(tile(stage, 1), directions, f, shared.offset,
                         half_norms<Tiling>(tile(stage, 1), norm_scale), 0.0f, log_k);
    // A factor that all features of a query share cancels in its output.
    if (kOutput)
      log_features<Tiling>(tile(stage, 0), query_directions, f, shared.offset, float2{}, -INFINITY,
                           log_q);
    const int rows =
        settle_peaks<Tiling>(log_k, min(Tiling::kTile, end - begin), a.block, log_max, shared);
    const int next = begin + rows;
    if (Tiling::kStages == 2 && next < end) load_chunk(next, stage ^ 1);

    // The inputs of the log features are not needed any more: factors and sums overwrite them.
    const RowTile keys = tile(stage, 0), sums = tile(stage, 1), values = tile(stage, 2);
    store_factors<Tiling>(log_k, rows, shared, keys);
    fade<Tiling>(shared, b);
    typename Tiling::Factors query, weights;
    float shift[2], denominator[2];
    if (kOutput) {
      query_factors<Tiling>(log_q, shared, query, shift, denominator);
#pragma unroll
      for (int n = 0; n < kWidth / 8; ++n) {
        store_pair(sums.at(16 * warp + g, 8 * n + 2 * c), Pair<T>(b[n][0], b[n][1]));
        store_pair(sums.at(16 * warp + g + 8, 8 * n + 2 * c), Pair<T>(b[n][2], b[n][3]));
      }
    }
    __syncthreads();
    if (kOutput) {
      pair_weights<Tiling>(query, keys, f.groups(), a.block, weights, denominator);
      const int64_t part = b_index * gridDim.x + blockIdx.x, head = b_index * a.heads + h;
      if (a.parts != nullptr)
        write_outputs<Tiling>(query, weights, sums, values, f.groups(), rows, denominator, a.width,
                              a.width % 2 == 0, a.parts + (part * a.tokens + begin) * a.width,
                              a.width);
      else
        write_outputs<Tiling>(
            query, weights, sums, values, f.groups(), rows, denominator, a.width, a.packed_out,
            head_of<T>(a.out, b_index, h) + begin * a.out.token_step, a.out.token_step);
      float* logs = a.parts != nullptr     ? a.part_logs + part * a.tokens
                    : a.log_sum != nullptr ? a.log_sum + head * a.tokens
                                           : nullptr;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = 16 * warp + 8 * half + g;
        if (logs != nullptr && c == 0 && row < rows)
          logs[begin + row] = shift[half] + logf(denominator[half]);
      }
    }
    if (warp < f.groups()) {
      float sum[4] = {};
      add_outer<Tiling>(keys, values, rows, Ones(), b, sum);
      if (c == 0) {
        shared.a[16 * warp + g] = shared.faded[16 * warp + g] + sum[0];
        shared.a[16 * warp + g + 8] = shared.faded[16 * warp + g + 8] + sum[2];
      }
    }
    if (Tiling::kStages == 1 && next < end) {
      __syncthreads();
      load_chunk(next, stage);
    }
    begin = next;
    stage = Tiling::kStages == 2 ? stage ^ 1 : 0;
  }
  __syncthreads();
  if (a.after.log_max != nullptr && writes_sums)
    write_sums<Tiling>(a.after, first_sum, f, a.width, b, log_max, shared);
}

// How many segments a sequence is cut into.
int64_t segments_of(const LinearAttentionShape& s, int64_t parts) {
  constexpr int64_t kEnoughBlocks = 264, kShortest = 128;
  const int64_t blocks = std::max<int64_t>(s.batch * parts, 1);
  if (blocks >= kEnoughBlocks / 4) return 1;
  return std::max<int64_t>(1, std::min(kEnoughBlocks / blocks, s.tokens / kShortest));
}

int64_t sums_floats(int64_t rows, int64_t total, int64_t width) {
  return rows * total * (width + 2);
}

LinearAttentionSums sums_at(float* at, int64_t rows, int64_t total) {
  return {at, at + rows * total, at + 2 * rows * total};
}

// Of the segments and of what lies before them, or a copy of what query heads read together.
int64_t kept_sums_floats(const LinearAttentionShape& s, const FeatureParts& f) {
  const int64_t segments = segments_of(s, f.count);
  if (segments > 1) return 2 * sums_floats(s.batch * segments, f.own, s.width);
  return f.table.sharing > 1 ? sums_floats(s.batch, f.own, s.width) : 0;
}

template <class T, int kWidth, bool kOutput>
cudaError_t launch_pass(const LinearAttentionShape& s, const ForwardArguments& a, int64_t parts,
                        cudaStream_t stream) {
  using Tiling = ChunkTiling<T, kWidth>;
  const dim3 grid(static_cast<unsigned>(parts), static_cast<unsigned>(s.batch),
                  static_cast<unsigned>(a.segments));
  constexpr size_t kBytes = forward_shared_bytes<Tiling, T>();
  return launch(linear_attention<T, kWidth, kOutput>, grid, Tiling::kThreads,
                a.u == nullptr ? kBytes : untied_shared_bytes<Tiling, T>(kBytes), stream, a);
}

template <class T>
cudaError_t launch_passes(const LinearAttentionShape& s, ForwardArguments a, int64_t parts,
                          const LinearAttentionSums& sums, float* workspace, cudaStream_t stream) {
  return with_width(s.width, [&](auto width) {
    constexpr int kWidth = decltype(width)::value;
    if (a.segments == 1) {
      a.before = a.after = sums;
      if (a.features.sharing > 1 && sums.log_max != nullptr) {
        // All query heads of a group read the sums that one of them overwrites.
        a.before = sums_at(workspace, s.batch, a.total);
        const cudaError_t status = copy_sums(a.before, sums, s.batch * a.total, s.width, stream);
        if (status != cudaSuccess) return status;
      }
      return launch_pass<T, kWidth, true>(s, a, parts, stream);
    }
    const int64_t rows = s.batch * a.segments;
    a.after = sums_at(workspace, rows, a.total);
    a.before = {};
    cudaError_t status = launch_pass<T, kWidth, false>(s, a, parts, stream);
    if (status != cudaSuccess) return status;
    const LinearAttentionSums of = a.after;
    a.before = sums_at(workspace + sums_floats(rows, a.total, s.width), rows, a.total);
    a.after = {};
    status = launch(accumulate_segments,
                    dim3(static_cast<unsigned>(a.total), static_cast<unsigned>(s.batch)),
                    kWidestHead, 0, stream, of, a.before, sums, a.segments, s.width);
    if (status != cudaSuccess) return status;
    return launch_pass<T, kWidth, true>(s, a, parts, stream);
  });
}

}  // namespace

int64_t linear_attention_workspace_bytes(const LinearAttentionShape& s,
                                         const LinearAttentionFeatures& features) {
  const FeatureParts f = feature_parts(s, features);
  int64_t floats = kept_sums_floats(s, f);
  if (f.count > s.heads) floats += s.batch * f.count * s.tokens * (s.width + 1);
  return floats * 4;
}

cudaError_t launch_linear_attention(const LinearAttentionShape& s,
                                    const LinearAttentionFeatures& features, const HeadRows& q,
                                    const HeadRows& k, const HeadRows& v,
                                    const LinearAttentionSums& sums, const HeadRowsOut& out,
                                    float* log_sum, void* workspace, cudaStream_t stream) {
  const FeatureParts f = feature_parts(s, features);
  if (!f.valid || linear_attention_chunk(s) % s.block != 0 || s.tokens % s.block != 0)
    return cudaErrorInvalidValue;
  if (s.tokens == 0 || s.batch == 0) return cudaSuccess;
  ForwardArguments a = {};
  a.q = q, a.k = k, a.v = v, a.out = out;
  a.log_sum = log_sum;
  a.features = f.table;
  a.z = features.z, a.log_alpha = features.log_alpha;
  a.u = features.u, a.norm_weight = features.norm_weight;
  a.heads = static_cast<int>(s.heads), a.group = static_cast<int>(s.heads / s.key_heads);
  a.tokens = static_cast<int>(s.tokens), a.width = static_cast<int>(s.width);
  a.total = static_cast<int>(f.own), a.block = static_cast<int>(s.block);
  for (int64_t h = 0; h < s.key_heads; ++h)
    a.own_tokens[h] = static_cast<int32_t>(s.own_tokens == nullptr ? s.tokens : s.own_tokens[h]);
  const FeatureScales scales = feature_scales(s.width, features.subtract_norm);
  a.inner_scale = scales.inner, a.norm_scale = scales.norm;
  a.packed = in_packs(q, s.element, s.width) && in_packs(k, s.element, s.width) &&
             in_packs(v, s.element, s.width);
  a.packed_out = in_packs(out, s.element, s.width);
  // Segments of whole chunks, none of them empty.
  const int64_t chunks = (s.tokens + 63) / 64, segments = segments_of(s, f.count);
  a.segment_tokens = static_cast<int>((chunks + segments - 1) / segments * 64);
  a.segments = static_cast<int>((s.tokens + a.segment_tokens - 1) / a.segment_tokens);
  float* memory = static_cast<float*>(workspace);
  if (f.count > s.heads) {
    a.parts = memory + kept_sums_floats(s, f);
    a.part_logs = a.parts + s.batch * f.count * s.tokens * s.width;
  }
  const cudaError_t status =
      s.element == Element::kF32
          ? launch_passes<float>(s, a, f.count, sums, memory, stream)
          : launch_passes<__nv_bfloat16>(s, a, f.count, sums, memory, stream);
  if (status != cudaSuccess || a.parts == nullptr) return status;
  return launch_merge_parts({s.element, s.batch, s.heads, f.count, s.tokens, s.width}, f.parts,
                            a.parts, a.part_logs, out, log_sum, stream);
}

}  // namespace dofla::cuda
