// A product stage: every consumer warp has a part of the inputs, for all outputs of a tile, so that
// it waits only for its own part of x. x enters as two bf16 numbers, which together hold its first
// sixteen bits, in two columns of the tensor cores' right operand.
#pragma once

#include "dofla/ops/cuda/activation.cuh"
#include "dofla/ops/cuda/stage_inputs.cuh"

namespace dofla::cuda {

// Inputs that a warp multiplies at a time.
struct ProductWindow {
  static constexpr int kInputs = 32;
};

// Bytes of a row of a tile in a slot: adjacent rows begin in different halves of the banks.
__host__ __device__ inline int tile_row_bytes(int inputs) {
  const int bytes = 2 * inputs;
  return bytes + (192 - bytes % 128) % 128;
}

__host__ __device__ inline int tiles_of(const ProductStage& p) {
  return (p.outputs + p.tile_rows - 1) / p.tile_rows;
}

// What the warps exchange about a tile, double-buffered: one buffer is written while the other is
// still read.
struct ProductShared {
  float4 moments[2][StageBlock::kConsumerWarps];  // of the warps' inputs
  float sums[2][StageBlock::kConsumerWarps][StageBlock::kMostTileRows];
};

// sums [16 · kTiles, 8] of the outputs of a tile with the two parts of x in columns 0 and 1, over a
// warp's inputs. The order in which inputs enter the tensor cores is free: a lane takes eight
// adjacent ones. Two windows are in flight at once.
template <int kTiles>
__device__ __forceinline__ void multiply_tile(const unsigned char* tile, int row_bytes, int rows,
                                              int count, const __nv_bfloat16* x, int stride,
                                              float (&sums)[2][4]) {
  constexpr int kTogether = 2;
  const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
  const unsigned char* own_row = tile + g * row_bytes + 16 * c;
#pragma unroll 1
  for (int start = 0; start < count; start += kTogether * ProductWindow::kInputs) {
    uint4 b[kTogether], a[kTogether][2 * kTiles];
#pragma unroll
    for (int w = 0; w < kTogether; ++w) {
      const int k = start + w * ProductWindow::kInputs;
      const auto eight = [&](bool there, const void* from) {
        return there && k + 8 * c < count ? *static_cast<const uint4*>(from) : uint4{};
      };
      b[w] = eight(g < 2, x + g * stride + k + 8 * c);
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

// The consumer warps' part. `parts` holds two bf16 numbers for every input of a warp.
template <int kChunks>
__device__ __forceinline__ void compute_product(const ProductStage& p, Tag tag, RingBuffer& ring,
                                                int& buffer, ProductShared& shared,
                                                __nv_bfloat16* parts) {
  const int tiles = tiles_of(p), row_bytes = tile_row_bytes(p.inputs);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  OwnInputs<kChunks> own(p);
  // x is waited for last.
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
    if (p.norm.weight != nullptr) own.normalise(p, shared.moments[buffer]);
  }
  own.split(parts, p.warp_inputs);
#pragma unroll 1
  for (int tile = blockIdx.x; tile < tiles; tile += p.blocks) {
    const int rows = min(p.tile_rows, p.outputs - tile * p.tile_rows);
    if (tile != blockIdx.x) ring.wait();
    const unsigned char* weights = ring.tile() + 2 * own.first;
    float sums[2][4] = {};
    if (rows > 16)
      multiply_tile<2>(weights, row_bytes, rows, own.count, parts, p.warp_inputs, sums);
    else
      multiply_tile<1>(weights, row_bytes, rows, own.count, parts, p.warp_inputs, sums);
    if (lane % 4 == 0) {
      float* to = shared.sums[buffer][warp] + lane / 4;
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        to[16 * m] = sums[m][0] + sums[m][1];
        to[16 * m + 8] = sums[m][2] + sums[m][3];
      }
    }
    end_step();
    buffer ^= 1;
    ring.next();
  }
}

__device__ __forceinline__ void compute_product(const ProductStage& p, Tag tag, RingBuffer& ring,
                                                int& buffer, ProductShared& shared,
                                                __nv_bfloat16* parts) {
  if (blockIdx.x >= min(tiles_of(p), p.blocks)) return;
  if (p.warp_inputs <= InputChunk::kSize)
    compute_product<1>(p, tag, ring, buffer, shared, parts);
  else if (p.warp_inputs <= 2 * InputChunk::kSize)
    compute_product<2>(p, tag, ring, buffer, shared, parts);
  else
    compute_product<InputChunk::kMost>(p, tag, ring, buffer, shared, parts);
}

// The epilogue warp's part, one lane an output. Bias, factor and residual are loaded before the sum
// is complete.
__device__ __forceinline__ void finish_product(const ProductStage& p, Tag tag, int& buffer,
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
      return mine && row != nullptr ? wait_for_tagged(row + own_copy(p.outputs) + n, tag)
                                    : otherwise;
    };
    const float factor = element(p.factor, 1), residual = element(p.residual, 0);
    if (p.norm.weight != nullptr && tile == blockIdx.x) end_step();
    end_step();
    float parts[4] = {bias};
#pragma unroll
    for (int w = 0; w < StageBlock::kConsumerWarps; ++w)
      parts[w % 4] += shared.sums[buffer][w][lane];
    float sum = (parts[0] + parts[1]) + (parts[2] + parts[3]);
    if (p.nonlinear) sum = apply(p.f, sum);
    sum = fmaf(sum, factor, residual);
    if (mine && p.y != nullptr) publish(p.y, p.outputs, n, sum, tag);
    if (mine && p.y == nullptr) p.logits[n] = sum;
    buffer ^= 1;
  }
}

// The producer warp's part: the norm's vectors first, then one tile after another.
__device__ __forceinline__ void prefetch_product(const ProductStage& p, RingProducer& producer) {
  const int tiles = tiles_of(p), lane = threadIdx.x % 32;
  if (blockIdx.x >= min(tiles, p.blocks)) return;
  if (p.norm.weight != nullptr) {
    const int count = p.norm.bias == nullptr ? 1 : 2;
    const int bytes = p.inputs * static_cast<int>(sizeof(float));
    unsigned char* to = producer.begin(count * bytes);
    if (lane < count)
      bulk_copy(to + lane * bytes, lane == 0 ? p.norm.weight : p.norm.bias, bytes,
                producer.barrier());
    producer.ring.next();
  }
#pragma unroll 1
  for (int tile = blockIdx.x; tile < tiles; tile += p.blocks) {
    const int first = tile * p.tile_rows, rows = min(p.tile_rows, p.outputs - first);
    unsigned char* to = producer.begin(rows * 2 * p.inputs);
    const auto* from = static_cast<const __nv_bfloat16*>(p.weight) +
                       (first + lane) * static_cast<int64_t>(p.inputs);
    if (lane < rows)
      bulk_copy(to + lane * tile_row_bytes(p.inputs), from, 2 * p.inputs, producer.barrier());
    producer.ring.next();
  }
}

}  // namespace dofla::cuda
