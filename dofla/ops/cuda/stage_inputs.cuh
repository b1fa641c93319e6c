// A warp's part of the input row of a product stage: waited for, normalised, and converted to the
// operands of tensor cores.
#pragma once

#include "dofla/ops/cuda/stage_ring.cuh"
#include "dofla/ops/cuda/tagged_row.cuh"
#include "dofla/ops/cuda/vector.cuh"

namespace dofla::cuda {

// Numbers that a warp waits for together.
struct InputChunk {
  static constexpr int kSize = 128;
  static constexpr int kMost = 4;  // chunks of a warp; one where there is a norm
};

// Four numbers a lane in every chunk; zeros past the end of the warp's part.
template <int kChunks>
struct OwnInputs {
  int first, count;
  float inverse_count, inverse_inputs;
  float4 x[kChunks];
  float4 weight, bias;  // of the norm, for which longer rows have no registers

  __device__ __forceinline__ explicit OwnInputs(const ProductStage& p)
      : first(threadIdx.x / 32 * p.warp_inputs),
        count(max(0, min(p.warp_inputs, p.inputs - first))),
        inverse_count(count > 0 ? 1 / static_cast<float>(count) : 0),
        inverse_inputs(1 / static_cast<float>(p.inputs)) {}

  static __device__ __forceinline__ int at(int chunk) {
    return chunk * InputChunk::kSize + threadIdx.x % 32 * 4;
  }

  __device__ __forceinline__ void await(const float* row, Tag tag) {
    uint4 words[kChunks];
    bool there;
    do {
      there = true;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        words[c] = make_uint4(tag, tag, tag, tag);
        if (at(c) < count) words[c] = load_four_relaxed(row + first + at(c));
      }
#pragma unroll
      for (int c = 0; c < kChunks; ++c) there = there && is_tagged(words[c], tag);
    } while (!__all_sync(kWholeWarp, there));
#pragma unroll
    for (int c = 0; c < kChunks; ++c) x[c] = at(c) < count ? untagged(words[c]) : float4{};
  }

  // The norm's vectors are in the current slot, one after the other.
  __device__ __forceinline__ void load_norm(const ProductStage& p, const unsigned char* slot) {
    static_assert(kChunks == 1);
    const auto* vectors = reinterpret_cast<const float*>(slot) + first + at(0);
    const bool inside = at(0) < count;
    weight = inside ? *reinterpret_cast<const float4*>(vectors) : float4{};
    bias = inside && p.norm.bias != nullptr ? *reinterpret_cast<const float4*>(vectors + p.inputs)
                                            : float4{};
  }

  // From the moments of every warp's own part (how many, their mean, their squares around it)
  // follow those of the row: exact, with one barrier.
  __device__ __forceinline__ void normalise(const ProductStage& p, float4* moments) {
    static_assert(kChunks == 1 && StageBlock::kConsumerWarps == 16,
                  "half a warp has the moments of one each");
    const float sum = (x[0].x + x[0].y) + (x[0].z + x[0].w);
    float mean = p.norm.centre ? warp_sum(sum) * inverse_count : 0;
    const float4 own = make_float4(x[0].x - mean, x[0].y - mean, x[0].z - mean, x[0].w - mean);
    const float squares = warp_sum(at(0) < count ? dot(own, own) : 0);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (lane == 0) moments[warp] = make_float4(static_cast<float>(count), mean, squares, 0);
    end_step();
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
    x[0] = make_float4(fmaf((x[0].x - mean) * scale, weight.x, bias.x),
                       fmaf((x[0].y - mean) * scale, weight.y, bias.y),
                       fmaf((x[0].z - mean) * scale, weight.z, bias.z),
                       fmaf((x[0].w - mean) * scale, weight.w, bias.w));
  }

  // As two rows of bf16 [2, stride] in shared memory: x rounded, and the rounding error.
  __device__ __forceinline__ void split(__nv_bfloat16* to, int stride) const {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (at(c) >= stride) continue;
      const uint2 high = make_uint2(pack_bf16(x[c].x, x[c].y), pack_bf16(x[c].z, x[c].w));
      const float2 xy = unpack_bf16(high.x), zw = unpack_bf16(high.y);
      *reinterpret_cast<uint2*>(to + at(c)) = high;
      *reinterpret_cast<uint2*>(to + stride + at(c)) = make_uint2(
          pack_bf16(x[c].x - xy.x, x[c].y - xy.y), pack_bf16(x[c].z - zw.x, x[c].w - zw.y));
    }
    __syncwarp();
  }
};

}  // namespace dofla::cuda
