// A product stage: every warp that computes takes some of the inputs, for all outputs of a tile, so
// that it waits for its own part of x alone. x enters as two bf16 numbers, which together have its
// first sixteen bits, in two columns of the tensor cores' right operand.
#pragma once

#include "dofla/ops/cuda/activation.cuh"
#include "dofla/ops/cuda/stage_inputs.cuh"

namespace dofla::cuda {

constexpr int kWindow = 32;  // inputs that a warp multiplies at a time

// A row of a tile in a slot: rows that follow each other begin in different halves of the banks.
__host__ __device__ inline int tile_row_bytes(int inputs) {
  const int bytes = 2 * inputs;
  return bytes + (192 - bytes % 128) % 128;
}

__host__ __device__ inline int tiles_of(const ProductStage& p) {
  return (p.outputs + p.tile_rows - 1) / p.tile_rows;
}

// What the warps tell each other about a tile, for two turns: that of one is written while that of
// the other is still read.
struct ProductShared {
  float4 moments[2][kWarps];  // of the warps' inputs
  float sums[2][kWarps][kMostTileRows];
};

// sums [16 · kTiles, 8] of the outputs of a tile with the two parts of x in columns 0 and 1, over a
// warp's inputs. Which inputs meet in a step of the tensor cores is free: a lane takes eight that
// lie side by side. Two windows are on their way at once.
template <int kTiles>
__device__ __forceinline__ void multiply_tile(const unsigned char* tile, int row_bytes, int rows,
                                              int count, const __nv_bfloat16* x, int room,
                                              float (&sums)[2][4]) {
  constexpr int kTogether = 2;
  const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
  const unsigned char* own_row = tile + g * row_bytes + 16 * c;
#pragma unroll 1
  for (int start = 0; start < count; start += kTogether * kWindow) {
    uint4 b[kTogether], a[kTogether][2 * kTiles];
#pragma unroll
    for (int w = 0; w < kTogether; ++w) {
      const int k = start + w * kWindow;
      const auto eight = [&](bool there, const void* from) {
        return there && k + 8 * c < count ? *static_cast<const uint4*>(from) : uint4{};
      };
      b[w] = eight(g < 2, x + g * room + k + 8 * c);
#pragma unroll
      for (int i = 0; i < 2 * kTiles; ++i)
        a[w][i] = eight(8 * i + g < rows, own_row + 8 * i * row_bytes + 2 * k);
    }
#pragma unroll
    for (int w = 0; w < kTogether; ++w)
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        const uint4 upper = a[w][2 * m], lower = a[w][2 * m + 1];
        mma_bf16(sums[m], {upper.x, lower.x, upper.y, lower.y}, b[w].x, b[w].y);
        mma_bf16(sums[m], {upper.z, lower.z, upper.w, lower.w}, b[w].z, b[w].w);
      }
  }
}

// Of the warps that compute. `room` holds two bf16 numbers for every input of a warp.
template <int kChunks>
__device__ __forceinline__ void compute_product(const ProductStage& p, Tag tag, TileRing& ring,
                                                int& turn, ProductShared& shared,
                                                __nv_bfloat16* room) {
  const int tiles = tiles_of(p), row_bytes = tile_row_bytes(p.inputs);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  OwnInputs<kChunks> own(p);
  // Whatever else there is to wait for comes before x.
  ring.wait();
  if constexpr (kChunks == 1) {
    if (p.norm.weight != nullptr) {
      own.load_norm(p, ring.tile());
      ring.next();
      ring.wait();
    }
  }
  own.await(p.x + own_copy(p.inputs), tag);
  if constexpr (kChunks == 1) {
    if (p.norm.weight != nullptr) own.normalise(p, shared.moments[turn]);
  }
  own.split(room, p.warp_inputs);
#pragma unroll 1
  for (int tile = blockIdx.x; tile < tiles; tile += p.blocks) {
    const int rows = min(p.tile_rows, p.outputs - tile * p.tile_rows);
    if (tile != blockIdx.x) ring.wait();
    const unsigned char* weights = ring.tile() + 2 * own.first;
    float sums[2][4] = {};
    if (rows > 16)
      multiply_tile<2>(weights, row_bytes, rows, own.count, room, p.warp_inputs, sums);
    else
      multiply_tile<1>(weights, row_bytes, rows, own.count, room, p.warp_inputs, sums);
    if (lane % 4 == 0) {
      float* to = shared.sums[turn][warp] + lane / 4;
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        to[16 * m] = sums[m][0] + sums[m][1];
        to[16 * m + 8] = sums[m][2] + sums[m][3];
      }
    }
    end_turn();
    turn ^= 1;
    ring.next();
  }
}

__device__ __forceinline__ void compute_product(const ProductStage& p, Tag tag, TileRing& ring,
                                                int& turn, ProductShared& shared,
                                                __nv_bfloat16* room) {
  if (blockIdx.x >= min(tiles_of(p), p.blocks)) return;
  if (p.warp_inputs <= kChunk)
    compute_product<1>(p, tag, ring, turn, shared, room);
  else if (p.warp_inputs <= 2 * kChunk)
    compute_product<2>(p, tag, ring, turn, shared, room);
  else
    compute_product<kMostChunks>(p, tag, ring, turn, shared, room);
}

// Of the warp that ends products, a lane an output. What a sum meets is asked for before it is
// there.
__device__ __forceinline__ void end_product(const ProductStage& p, Tag tag, int& turn,
                                            ProductShared& shared) {
  const int tiles = tiles_of(p), lane = threadIdx.x % 32;
  if (blockIdx.x >= min(tiles, p.blocks)) return;
#pragma unroll 1
  for (int tile = blockIdx.x; tile < tiles; tile += p.blocks) {
    const int n = tile * p.tile_rows + lane;
    const bool mine = lane < p.tile_rows && n < p.outputs;
    const auto* biases = static_cast<const __nv_bfloat16*>(p.bias);
    const float bias = mine && biases != nullptr ? to_float(biases[n]) : 0;
    const auto element = [&](const float* row, float otherwise) {
      return mine && row != nullptr ? await_tagged(row + own_copy(p.outputs) + n, tag) : otherwise;
    };
    const float factor = element(p.factor, 1), residual = element(p.residual, 0);
    if (p.norm.weight != nullptr && tile == blockIdx.x) end_turn();
    end_turn();
    float parts[4] = {bias};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) parts[w % 4] += shared.sums[turn][w][lane];
    float sum = (parts[0] + parts[1]) + (parts[2] + parts[3]);
    if (p.nonlinear) sum = apply(p.f, sum);
    sum = fmaf(sum, factor, residual);
    if (mine && p.y != nullptr) hand_over(p.y, p.outputs, n, sum, tag);
    if (mine && p.y == nullptr) p.logits[n] = sum;
    turn ^= 1;
  }
}

// Of the warp that fills slots: the norm's vectors first, then a tile after another.
__device__ __forceinline__ void fill_product(const ProductStage& p, RingFiller& filler) {
  const int tiles = tiles_of(p), lane = threadIdx.x % 32;
  if (blockIdx.x >= min(tiles, p.blocks)) return;
  if (p.norm.weight != nullptr) {
    const int count = p.norm.bias == nullptr ? 1 : 2;
    const int bytes = p.inputs * static_cast<int>(sizeof(float));
    unsigned char* to = filler.begin(count * bytes);
    if (lane < count)
      bulk_copy(to + lane * bytes, lane == 0 ? p.norm.weight : p.norm.bias, bytes,
                filler.barrier());
    filler.ring.next();
  }
#pragma unroll 1
  for (int tile = blockIdx.x; tile < tiles; tile += p.blocks) {
    const int first = tile * p.tile_rows, rows = min(p.tile_rows, p.outputs - first);
    unsigned char* to = filler.begin(rows * 2 * p.inputs);
    const auto* from = static_cast<const __nv_bfloat16*>(p.weight) +
                       (first + lane) * static_cast<int64_t>(p.inputs);
    if (lane < rows)
      bulk_copy(to + lane * tile_row_bytes(p.inputs), from, 2 * p.inputs, filler.barrier());
    filler.ring.next();
  }
}

}  // namespace dofla::cuda
