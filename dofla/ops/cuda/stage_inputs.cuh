// A warp's part of the row that a product stage takes: waited for, normalised, and brought into the
// form in which tensor cores take it.
#pragma once

#include "dofla/ops/cuda/stage_ring.cuh"
#include "dofla/ops/cuda/tagged_row.cuh"
#include "dofla/ops/cuda/vector.cuh"

namespace dofla::cuda {

constexpr int kChunk = 128;     // numbers that a warp looks at together
constexpr int kMostChunks = 4;  // of a warp

// Four numbers a lane in every chunk; zeros behind the end of the warp's part.
template <int kChunks>
struct OwnInputs {
  int first, count;
  float inverse_count, inverse_inputs;
  float4 x[kChunks];

  __device__ __forceinline__ explicit OwnInputs(const ProductStage& p)
      : first(threadIdx.x / 32 * p.warp_inputs),
        count(max(0, min(p.warp_inputs, p.inputs - first))),
        inverse_count(count > 0 ? 1 / static_cast<float>(count) : 0),
        inverse_inputs(1 / static_cast<float>(p.inputs)) {}

  static __device__ __forceinline__ int at(int chunk) {
    return chunk * kChunk + threadIdx.x % 32 * 4;
  }

  __device__ __forceinline__ void await(const float* row, Tag tag) {
    uint4 words[kChunks];
    bool there;
    do {
      there = true;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        words[c] = make_uint4(tag, tag, tag, tag);
        if (at(c) < count) words[c] = look_at_four(row + first + at(c));
      }
#pragma unroll
      for (int c = 0; c < kChunks; ++c) there = there && is_tagged(words[c], tag);
    } while (!__all_sync(kWholeWarp, there));
#pragma unroll
    for (int c = 0; c < kChunks; ++c) x[c] = at(c) < count ? untagged(words[c]) : float4{};
  }

  // From the moments of every warp's own part (how many, their mean, their squares around it)
  // follow those of the row: exact, with one barrier.
  __device__ __forceinline__ void normalise(const ProductStage& p, float4* moments,
                                            TileRing& ring) {
    float sum = 0, squares = 0;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) sum += (x[c].x + x[c].y) + (x[c].z + x[c].w);
    float mean = p.norm.centre ? warp_sum(sum) * inverse_count : 0;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const float4 off = make_float4(x[c].x - mean, x[c].y - mean, x[c].z - mean, x[c].w - mean);
      const float all = (off.x * off.x + off.y * off.y) + (off.z * off.z + off.w * off.w);
      squares += at(c) < count ? all : 0;
    }
    squares = warp_sum(squares);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (lane == 0) moments[warp] = make_float4(static_cast<float>(count), mean, squares, 0);
    meet();
    static_assert(kWarps == 16, "half a warp has the moments of one each");
    const float4 part = moments[lane % 16];
    const auto over_warps = [](float value) {
#pragma unroll
      for (int step = 8; step > 0; step /= 2) value += __shfl_xor_sync(kWholeWarp, value, step);
      return value;
    };
    mean = over_warps(part.x * part.y) * inverse_inputs;
    const float off = part.y - mean;
    const float variance = over_warps(fmaf(part.x * off, off, part.z)) * inverse_inputs;
    const float scale = rsqrtf(variance + p.norm.epsilon);

    const auto* weight = reinterpret_cast<const float*>(ring.tile()) + first;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (at(c) >= count) continue;
      const float4 w = *reinterpret_cast<const float4*>(weight + at(c));
      const float4 b = p.norm.bias == nullptr
                           ? float4{}
                           : *reinterpret_cast<const float4*>(weight + p.inputs + at(c));
      x[c] = make_float4(
          fmaf((x[c].x - mean) * scale, w.x, b.x), fmaf((x[c].y - mean) * scale, w.y, b.y),
          fmaf((x[c].z - mean) * scale, w.z, b.z), fmaf((x[c].w - mean) * scale, w.w, b.w));
    }
    ring.leave();
  }

  // As two rows of bf16 [2, room] in shared memory: what x is rounded to, and what that leaves.
  __device__ __forceinline__ void split(__nv_bfloat16* to, int room) const {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (at(c) >= room) continue;
      const uint2 high = make_uint2(pack_bf16(x[c].x, x[c].y), pack_bf16(x[c].z, x[c].w));
      const float2 xy = unpack_bf16(high.x), zw = unpack_bf16(high.y);
      *reinterpret_cast<uint2*>(to + at(c)) = high;
      *reinterpret_cast<uint2*>(to + room + at(c)) = make_uint2(
          pack_bf16(x[c].x - xy.x, x[c].y - xy.y), pack_bf16(x[c].z - zw.x, x[c].w - zw.y));
    }
    __syncwarp();
  }
};

}  // namespace dofla::cuda
