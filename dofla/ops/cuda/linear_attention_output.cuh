// The outputs of a chunk of the forward: queries' factors, weights of the chunk's own keys,
// outputs, and the sums that are carried to the next chunk or call.
#pragma once

#include "dofla/ops/cuda/linear_attention_chunk.cuh"

namespace dofla::cuda {

// Factors exp(log q + peak − shift) with the row's largest as shift, and their share of the
// denominators that comes from earlier chunks.
template <class Tiling>
__device__ __forceinline__ void query_factors(const typename Tiling::Logs& logs,
                                              const ChunkShared<Tiling::kTile>& shared,
                                              typename Tiling::Factors& factors, float (&shift)[2],
                                              float (&denominator)[2]) {
  const int c = threadIdx.x % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float most = -INFINITY;
#pragma unroll
    for (int n = 0; n < Tiling::kBlocks; ++n) {
      const int m = 8 * n + 2 * c;
      most = fmaxf(most, fmaxf(logs[n][2 * half] + shared.peak[m],
                               logs[n][2 * half + 1] + shared.peak[m + 1]));
    }
    shift[half] = quad_max(most);
    float sum = 0;
#pragma unroll
    for (int n = 0; n < Tiling::kBlocks; ++n) {
      const int m = 8 * n + 2 * c;
      factors.pair[n][half] = {fast_exp(logs[n][2 * half] + shared.peak[m] - shift[half]),
                               fast_exp(logs[n][2 * half + 1] + shared.peak[m + 1] - shift[half])};
      // What the products will see, so that weights add up to one.
      const float2 rounded = factors.pair[n][half].floats();
      sum = fmaf(rounded.x, shared.faded[m], fmaf(rounded.y, shared.faded[m + 1], sum));
    }
    denominator[half] = quad_sum(sum);
  }
}

// Weights Σ_m query_im key_jm of the chunk's keys that row i sees, and their share of the
// denominators.
template <class Tiling>
__device__ __forceinline__ void pair_weights(const typename Tiling::Factors& query,
                                             typename Tiling::RowTile keys, int groups, int block,
                                             typename Tiling::Factors& weights,
                                             float (&denominator)[2]) {
  typename Tiling::Logs sums;
  dot_rows<Tiling, Tiling::kTile / 16>([&](int k) { return query.left(k); }, groups, keys, sums);
  keep_earlier<Tiling>(sums, block, weights);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = 0;
#pragma unroll
    for (int n = 0; n < Tiling::kBlocks; ++n) {
      const float2 rounded = weights.pair[n][half].floats();
      sum += rounded.x + rounded.y;
    }
    denominator[half] += quad_sum(sum);
  }
}

// out = (query · b + weights · v) / denominator for the warp's rows below `rows`.
template <class Tiling, class Out>
__device__ __forceinline__ void write_outputs(const typename Tiling::Factors& query,
                                              const typename Tiling::Factors& weights,
                                              typename Tiling::RowTile b,
                                              typename Tiling::RowTile values, int groups, int rows,
                                              const float (&denominator)[2], int width, bool paired,
                                              Out* out, int64_t step) {
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
#pragma unroll
  for (int column = 0; column < Tiling::kWidth; column += Tiling::kColumns) {
    typename Tiling::Columns sums = {};
    add_product<Tiling, Tiling::kColumnGroups>(query, groups, b, column, Tiling::kColumnGroups,
                                               sums);
    add_product<Tiling, Tiling::kColumnGroups>(weights, Tiling::kTile / 16, values, column,
                                               Tiling::kColumnGroups, sums);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = 16 * warp + 8 * half + g;
      if (row >= rows) continue;
      const float inverse = 1.0f / denominator[half];
#pragma unroll
      for (int n = 0; n < Tiling::kColumns / 8; ++n)
        store_two(out + row * step, column + 8 * n + 2 * c, width, paired,
                  sums[n][2 * half] * inverse, sums[n][2 * half + 1] * inverse);
    }
  }
}

// Reads or writes the sums of the block's features: b in registers, a in shared memory, and the
// peak of feature m with thread m.
template <class Tiling>
__device__ void read_sums(const LinearAttentionSums& from, int64_t first, const BlockFeatures& f,
                          int width, typename Tiling::Values& b, float& log_max,
                          ChunkShared<Tiling::kTile>& shared) {
  const int m = threadIdx.x, g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
  if (m < Tiling::kTile) {
    // Features past the block's last stay at 0: they contribute nothing and are not written.
    const bool mine = m < f.count, begun = mine && from.log_max != nullptr;
    log_max = begun ? from.log_max[first + m] : mine ? -INFINITY : 0.0f;
    shared.a[m] = begun ? from.a[first + m] : 0.0f;
  }
#pragma unroll
  for (int n = 0; n < Tiling::kWidth / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int feature = threadIdx.x / 32 * 16 + g + i / 2 * 8, d = 8 * n + 2 * c + i % 2;
      b[n][i] = from.log_max != nullptr && feature < f.count && d < width
                    ? from.b[(first + feature) * width + d]
                    : 0.0f;
    }
  }
}

template <class Tiling>
__device__ void write_sums(const LinearAttentionSums& to, int64_t first, const BlockFeatures& f,
                           int width, const typename Tiling::Values& b, float log_max,
                           const ChunkShared<Tiling::kTile>& shared) {
  const int m = threadIdx.x, g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
  if (m < f.count) {
    to.log_max[first + m] = log_max;
    to.a[first + m] = shared.a[m];
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int feature = threadIdx.x / 32 * 16 + g + 8 * half;
    if (feature >= f.count) continue;
#pragma unroll
    for (int n = 0; n < Tiling::kWidth / 8; ++n)
      store_two(to.b + (first + feature) * width, 8 * n + 2 * c, width, width % 2 == 0,
                b[n][2 * half], b[n][2 * half + 1]);
  }
}

// The sums of `rows` features.
inline cudaError_t copy_sums(const LinearAttentionSums& to, const LinearAttentionSums& from,
                             int64_t rows, int64_t width, cudaStream_t stream) {
  const auto copy = [&](float* there, const float* here, int64_t count) {
    return cudaMemcpyAsync(there, here, static_cast<size_t>(count) * sizeof(float),
                           cudaMemcpyDeviceToDevice, stream);
  };
  cudaError_t status = copy(to.log_max, from.log_max, rows);
  if (status == cudaSuccess) status = copy(to.a, from.a, rows);
  return status == cudaSuccess ? copy(to.b, from.b, rows * width) : status;
}

}  // namespace dofla::cuda
