#include "dofla/ops/cuda/decode_kernels.h"
#include "dofla/ops/cuda/head_rows.h"
#include "dofla/ops/cuda/overlap.cuh"
#include "dofla/ops/cuda/vector.cuh"

namespace dofla::cuda {
namespace {

template <class T>
__global__ void embed_tokens(TokenEmbedding e, T* __restrict__ x) {
  let_next_start();
  const int64_t b = blockIdx.y, i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i >= e.width) return;
  float value = to_float(static_cast<const T*>(e.tokens)[e.ids[b] * e.width + i]);
  if (e.positions != nullptr)
    value += to_float(static_cast<const T*>(e.positions)[e.where[b] * e.width + i]);
  x[b * e.width + i] = from_float<T>(value);
}

constexpr int kWarps = 4;  // heads of a block

template <class T>
__global__ void __launch_bounds__(32 * kWarps) place_heads(const __grid_constant__ PlacedHeads a) {
  __shared__ float vectors[kWarps][kWidestHead];
  let_next_start();
  wait_for_inputs();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t i = blockIdx.x * int64_t{kWarps} + warp, all = a.q.heads + a.k.heads;
  if (i >= a.batch * all) return;
  const int64_t b = i / all, h = i % all;
  const HeadVectors& of = h < a.q.heads ? a.q : a.k;
  const int64_t head = h < a.q.heads ? h : h - a.q.heads;
  T* vector = static_cast<T*>(of.rows) + b * of.columns + of.offset + head * of.stride;
  float* mine = vectors[warp];

  float squares = 0;
  for (int64_t d = lane; d < a.size; d += 32) {
    mine[d] = to_float(vector[d]);
    squares = fmaf(mine[d], mine[d], squares);
  }
  if (of.norm != nullptr) {
    const float scale = rsqrtf(warp_sum(squares) / static_cast<float>(a.size) + a.epsilon);
    for (int64_t d = lane; d < a.size; d += 32) mine[d] *= scale * of.norm[d];
  }
  __syncwarp();
  const float position = static_cast<float>(a.where[b]);
  for (int64_t d = lane; d < a.size; d += 32) {
    float value = mine[d];
    if (d < 2 * a.pairs) {
      const bool first = d < a.pairs;
      float sine, cosine;
      sincosf(position * a.frequencies[first ? d : d - a.pairs], &sine, &cosine);
      value = first ? value * cosine - mine[d + a.pairs] * sine
                    : value * cosine + mine[d - a.pairs] * sine;
    }
    vector[d] = from_float<T>(value);
  }
}

}  // namespace

cudaError_t launch_embed_tokens(const TokenEmbedding& e, void* x, cudaStream_t stream) {
  constexpr int kThreads = 256;
  return with_type(e.element, [&](auto zero) {
    using T = decltype(zero);
    if (e.batch > 0)
      embed_tokens<<<dim3(blocks_for(e.width, kThreads), static_cast<unsigned>(e.batch)), kThreads,
                     0, stream>>>(e, static_cast<T*>(x));
  });
}

cudaError_t launch_place_heads(const PlacedHeads& a, cudaStream_t stream) {
  if (a.size > kWidestHead || 2 * a.pairs > a.size) return cudaErrorInvalidValue;
  const dim3 grid(blocks_for(a.batch * (a.q.heads + a.k.heads), kWarps));
  return a.element == Element::kF32
             ? launch_overlapped(place_heads<float>, grid, 32 * kWarps, 0, stream, a)
             : launch_overlapped(place_heads<__nv_bfloat16>, grid, 32 * kWarps, 0, stream, a);
}

}  // namespace dofla::cuda
