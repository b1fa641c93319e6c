#include "dofla/ops/cuda/head_kernels.h"
#include "dofla/ops/cuda/head_rows.cuh"
#include "dofla/ops/cuda/overlap.cuh"
#include "dofla/ops/cuda/rotation.cuh"

namespace dofla::cuda {
namespace {

constexpr int kThreads = 256;

// Which vector a thread works at. Neighbours go along the rows of a projection: part of a vector,
// head, then token.
struct Place {
  int64_t b, h, t;
};
__device__ __forceinline__ Place place_of(const HeadShape& s, int64_t vector) {
  const int64_t row = vector / s.heads;
  return {row / s.tokens, vector % s.heads, row % s.tokens};
}

// One thread moves one word of a vector; words are as wide as both sides allow.
template <class Word>
__global__ void copy_words(HeadShape s, int64_t elements,  // of a word
                           HeadRows from, const int64_t* past, HeadRowsOut to) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x, words = s.width / elements;
  if (i >= s.batch * s.heads * s.tokens * words) return;
  const Place at = place_of(s, i / words);
  const auto word_of = [&](const auto& rows, int64_t t) {
    return (at.b * rows.batch_step + at.h * rows.head_step + t * rows.token_step) / elements +
           i % words;
  };
  const int64_t place = past == nullptr ? at.t : past[at.b] + at.t;
  static_cast<Word*>(to.data)[word_of(to, place)] =
      static_cast<const Word*>(from.data)[word_of(from, at.t)];
}

template <class Word>
cudaError_t launch_copy(const HeadShape& s, int64_t elements, const HeadRows& from,
                        const int64_t* past, const HeadRowsOut& to, cudaStream_t stream) {
  const int64_t threads = s.batch * s.heads * s.tokens * (s.width / elements);
  if (threads > 0)
    copy_words<Word>
        <<<blocks_for(threads, kThreads), kThreads, 0, stream>>>(s, elements, from, past, to);
  return cudaGetLastError();
}

// [B, H, T, D], whole
__global__ void widen_heads(HeadShape s, HeadRows from, float* to) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i >= s.batch * s.heads * s.tokens * s.width) return;
  const int64_t row = i / s.width, head = row / s.tokens;
  const auto* vector = head_of<__nv_bfloat16>(from, head / s.heads, head % s.heads) +
                       row % s.tokens * from.token_step;
  to[i] = to_float(vector[i % s.width]);
}

__device__ __forceinline__ int64_t position_of(const Rotation& r, int64_t b) {
  return r.first == nullptr ? 0 : r.first[b];
}

template <class T>
__global__ void rotate_pairs(HeadShape s, Rotation r, HeadRowsOut x) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i >= s.batch * s.heads * s.tokens * r.pairs) return;
  const Place where = place_of(s, i / r.pairs);
  const int64_t pair = i % r.pairs;
  const Turn turn = turn_at(position_of(r, where.b) + where.t, r.sign * r.frequencies[pair]);
  T* at = head_of<T>(x, where.b, where.h) + where.t * x.token_step + pair;
  const float first = to_float(at[0]), second = to_float(at[r.pairs]);
  at[0] = from_float<T>(turned(first, second, turn.cosine, -turn.sine));
  at[r.pairs] = from_float<T>(turned(second, first, turn.cosine, turn.sine));
}

constexpr int kWarps = 4;  // heads of a block

// A warp takes a head of a sequence.
template <class T>
__global__ void __launch_bounds__(32 * kWarps)
    place_heads(HeadShape s, const __grid_constant__ PlacedHeads a) {
  __shared__ float vectors[kWarps][kWidestHead];
  let_next_start();
  wait_for_inputs();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t i = blockIdx.x * int64_t{kWarps} + warp, all = a.q.heads + a.k.heads;
  if (i >= s.batch * all) return;
  const int64_t b = i / all, h = i % all;
  const PlacedHeads::Part& of = h < a.q.heads ? a.q : a.k;
  const int64_t head = h < a.q.heads ? h : h - a.q.heads;
  const T* from = head_of<T>(of.from, b, head);
  T* to = head_of<T>(of.to, b, head);
  float* mine = vectors[warp];

  float squares = 0;
  for (int64_t d = lane; d < s.width; d += 32) {
    mine[d] = to_float(from[d]);
    squares = fmaf(mine[d], mine[d], squares);
  }
  if (of.norm != nullptr) {
    const float scale = rsqrtf(warp_sum(squares) / static_cast<float>(s.width) + a.epsilon);
    for (int64_t d = lane; d < s.width; d += 32) mine[d] *= scale * of.norm[d];
  }
  __syncwarp();
  const Rotation& r = a.rotation;
  const int64_t position = position_of(r, b);
  for (int64_t d = lane; d < s.width; d += 32) {
    float value = mine[d];
    if (d < 2 * r.pairs) {
      const bool first = d < r.pairs;
      const int64_t partner = first ? d + r.pairs : d - r.pairs;
      const Turn turn = turn_at(position, r.sign * r.frequencies[first ? d : partner]);
      value = turned(value, mine[partner], turn.cosine, first ? -turn.sine : turn.sine);
    }
    to[d] = from_float<T>(value);
  }
}

}  // namespace

cudaError_t launch_copy_heads(const HeadShape& s, const HeadRows& from, const int64_t* past,
                              const HeadRowsOut& to, cudaStream_t stream) {
  const int64_t pack = s.element == Element::kF32 ? 4 : 8;
  if (in_packs(from, s.element, s.width) && in_packs(to, s.element, s.width))
    return launch_copy<uint4>(s, pack, from, past, to, stream);
  return s.element == Element::kF32 ? launch_copy<float>(s, 1, from, past, to, stream)
                                    : launch_copy<uint16_t>(s, 1, from, past, to, stream);
}

cudaError_t launch_widen_heads(const HeadShape& s, const HeadRows& from, float* to,
                               cudaStream_t stream) {
  if (s.element != Element::kBF16) return cudaErrorInvalidValue;
  const int64_t threads = s.batch * s.heads * s.tokens * s.width;
  if (threads > 0) widen_heads<<<blocks_for(threads, kThreads), kThreads, 0, stream>>>(s, from, to);
  return cudaGetLastError();
}

cudaError_t launch_rotate(const HeadShape& shape, const Rotation& rotation, const HeadRowsOut& x,
                          cudaStream_t stream) {
  return with_type(shape.element, [&](auto zero) {
    const int64_t threads = shape.batch * shape.heads * shape.tokens * rotation.pairs;
    if (threads > 0)
      rotate_pairs<decltype(zero)>
          <<<blocks_for(threads, kThreads), kThreads, 0, stream>>>(shape, rotation, x);
  });
}

cudaError_t launch_place_heads(const HeadShape& s, const PlacedHeads& a, cudaStream_t stream) {
  if (s.tokens != 1 || s.width > kWidestHead || 2 * a.rotation.pairs > s.width)
    return cudaErrorInvalidValue;
  const dim3 grid(blocks_for(s.batch * (a.q.heads + a.k.heads), kWarps));
  return s.element == Element::kF32
             ? launch_overlapped(place_heads<float>, grid, 32 * kWarps, 0, stream, s, a)
             : launch_overlapped(place_heads<__nv_bfloat16>, grid, 32 * kWarps, 0, stream, s, a);
}

}  // namespace dofla::cuda
