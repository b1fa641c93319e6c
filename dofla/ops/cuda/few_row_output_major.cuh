// Weights [outputs, inputs]. A warp takes some outputs at a time, its lanes side by side along the
// inputs; where those are many, several warps share them. Blocks stay for many outputs, so that the
// rows are put into shared memory once, and the next weights are always on their way.
#pragma once

#include "dofla/ops/cuda/few_row.cuh"

namespace dofla::cuda {

// The two halves of a lane's pack lie apart, each beside those of its neighbours: a warp reads them
// without meeting in a bank.
struct LanesSideBySide {
  __device__ static int at(int k) {
    return k / kChunk * kChunk + k % kPack / 4 * (kChunk / 2) + k % kChunk / kPack * 4;
  }
};

template <int kRows, int kOutputs>
struct OutputMajor {
  static constexpr int kThreads = 256, kWarps = kThreads / 32;
  static constexpr int kAhead = kRows <= 2 ? 4 : 2;  // chunks on their way
  static constexpr int kPartial = kWarps * kOutputs * kRows;
  using Rows = StagedRows<kRows, kThreads, LanesSideBySide>;

  // Warps that share an output's inputs, so that each has few chunks.
  static int splits(int64_t inputs) {
    const int chunks = padded_inputs(inputs) / kChunk;
    int splits = 1;
    while (splits < kWarps && chunks > kAhead * splits) splits *= 2;
    return splits;
  }
  static size_t shared_bytes(const FewRowProduct& p) {
    return sizeof(float) *
           (2 * kPartial + Rows::floats(padded_inputs(p.inputs), p.norm.weight != nullptr));
  }
};

// What one chunk of inputs adds to the sums [kOutputs, kRows] of a lane.
template <class Rows, int kOutputs, int kSums>
__device__ __forceinline__ void add_products(const Rows& rows, int chunk,
                                             const uint4 (&weights)[kOutputs],
                                             float (&sums)[kSums]) {
  constexpr int kRows = kSums / kOutputs;
  const float* x = rows.x + chunk * kChunk + threadIdx.x % 32 * 4;
  Pack<__nv_bfloat16> w[kOutputs];
#pragma unroll
  for (int o = 0; o < kOutputs; ++o) w[o] = unpack(weights[o]);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const Pack<float> low = load_pack(x + r * rows.padded);
    const Pack<float> high = load_pack(x + r * rows.padded + kChunk / 2);
#pragma unroll
    for (int o = 0; o < kOutputs; ++o)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float& sum = sums[o * kRows + r];
        sum = fmaf(w[o].values[j], low.values[j], sum);
        sum = fmaf(w[o].values[4 + j], high.values[j], sum);
      }
  }
}

template <int kRows, int kOutputs>
__global__ void __launch_bounds__(256, 2)
    few_rows_output_major(const __grid_constant__ FewRowProduct p, int splits) {
  using Shape = OutputMajor<kRows, kOutputs>;
  constexpr int kAhead = Shape::kAhead, kSums = kOutputs * kRows;
  extern __shared__ float4 memory[];
  float* const halves = reinterpret_cast<float*>(memory);
  float* partial = halves;  // [splits, outputs of a tile, kRows]
  const typename Shape::Rows rows(p, halves + 2 * Shape::kPartial);
  let_next_start();

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int split = warp % splits, group = warp / splits;
  const int tile_outputs = Shape::kWarps / splits * kOutputs;
  const int64_t tiles = (p.outputs + tile_outputs - 1) / tile_outputs;
  const int chunks = rows.padded / kChunk, share = (chunks + splits - 1) / splits;
  const int first_chunk = split * share;

  const auto load = [&](uint4(&to)[kOutputs], int64_t tile, int chunk) {
    const int64_t n = tile * tile_outputs + group * kOutputs;
    const int64_t k = (first_chunk + chunk) * int64_t{kChunk} + lane * kPack;
#pragma unroll
    for (int o = 0; o < kOutputs; ++o)
      to[o] = load_weights(static_cast<const __nv_bfloat16*>(p.weight) + (n + o) * p.inputs + k,
                           n + o < p.outputs && chunk < share && k < p.inputs);
  };
  // Held are the chunks i, i + kAhead, … of a tile in turn, then those of the next tile.
  uint4 held[kAhead][kOutputs];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) load(held[i], blockIdx.x, i);
  rows.load_norm();

  wait_for_inputs();
  // The thread's own element of a tile: neighbours write neighbours.
  const int own_output = threadIdx.x % tile_outputs, own_row = threadIdx.x / tile_outputs;
  Ending ending(p, own_row, blockIdx.x * int64_t{tile_outputs} + own_output);
  rows.load();

  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    float sums[kSums] = {};  // [kOutputs, kRows]
    for (int start = 0; start < share; start += kAhead) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int chunk = start + i;
        if (chunk < share) {
          if (first_chunk + chunk < chunks) add_products(rows, first_chunk + chunk, held[i], sums);
          const bool more = chunk + kAhead < share;
          load(held[i], more ? tile : tile + gridDim.x, more ? chunk + kAhead : i);
        }
      }
    }
    const int at = scatter_sums<16, 1>(sums);
#pragma unroll
    for (int j = 0; j < kLeftOver<5, kSums>; ++j)
      partial[(split * tile_outputs + group * kOutputs) * kRows + at + j] = sums[j];
    __syncthreads();
    if (own_row < kRows) {
      float sum = 0;
      for (int s = 0; s < splits; ++s)
        sum += partial[(s * tile_outputs + own_output) * kRows + own_row];
      ending.store(p, own_row, tile * tile_outputs + own_output, sum);
    }
    ending = Ending(p, own_row, (tile + gridDim.x) * tile_outputs + own_output);
    // The other half: some may still read this one, but nobody that one.
    partial = partial == halves ? halves + Shape::kPartial : halves;
  }
}

template <int kRows, int kOutputs>
cudaError_t launch_output_major(const FewRowProduct& p, int multiprocessors, cudaStream_t stream) {
  using Shape = OutputMajor<kRows, kOutputs>;
  const int splits = Shape::splits(p.inputs);
  const int64_t tile_outputs = Shape::kWarps / splits * kOutputs;
  const int64_t tiles = (p.outputs + tile_outputs - 1) / tile_outputs;
  const int64_t blocks = tiles < 2 * multiprocessors ? tiles : 2 * multiprocessors;
  return launch_overlapped(few_rows_output_major<kRows, kOutputs>,
                           dim3(static_cast<unsigned>(blocks)), Shape::kThreads,
                           Shape::shared_bytes(p), stream, p, splits);
}

}  // namespace dofla::cuda
