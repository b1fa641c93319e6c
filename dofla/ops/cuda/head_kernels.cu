#include "dofla/ops/cuda/head_kernels.h"
#include "dofla/ops/cuda/head_rows.cuh"

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
                           HeadRows from, HeadRowsOut to) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x, words = s.width / elements;
  if (i >= s.batch * s.heads * s.tokens * words) return;
  const Place at = place_of(s, i / words);
  const auto word_of = [&](const auto& rows) {
    return (at.b * rows.batch_step + at.h * rows.head_step + at.t * rows.token_step) / elements +
           i % words;
  };
  static_cast<Word*>(to.data)[word_of(to)] = static_cast<const Word*>(from.data)[word_of(from)];
}

template <class Word>
cudaError_t launch_copy(const HeadShape& s, int64_t elements, const HeadRows& from,
                        const HeadRowsOut& to, cudaStream_t stream) {
  const int64_t threads = s.batch * s.heads * s.tokens * (s.width / elements);
  if (threads > 0)
    copy_words<Word><<<blocks_for(threads, kThreads), kThreads, 0, stream>>>(s, elements, from, to);
  return cudaGetLastError();
}

template <class T>
__global__ void rotate_pairs(HeadShape s, Rotation r, HeadRowsOut x) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i >= s.batch * s.heads * s.tokens * r.pairs) return;
  const Place where = place_of(s, i / r.pairs);
  const int64_t pair = i % r.pairs;
  const float position = static_cast<float>(r.first_position + where.t);
  float sine, cosine;
  sincosf(position * r.frequencies[pair], &sine, &cosine);
  T* at = head_of<T>(x, where.b, where.h) + where.t * x.token_step + pair;
  const float first = to_float(at[0]), second = to_float(at[r.pairs]);
  at[0] = from_float<T>(first * cosine - second * sine);
  at[r.pairs] = from_float<T>(second * cosine + first * sine);
}

}  // namespace

cudaError_t launch_copy_heads(const HeadShape& s, const HeadRows& from, const HeadRowsOut& to,
                              cudaStream_t stream) {
  const int64_t pack = s.element == Element::kF32 ? 4 : 8;
  if (in_packs(from, s.element, s.width) && in_packs(to, s.element, s.width))
    return launch_copy<uint4>(s, pack, from, to, stream);
  return s.element == Element::kF32 ? launch_copy<float>(s, 1, from, to, stream)
                                    : launch_copy<uint16_t>(s, 1, from, to, stream);
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

}  // namespace dofla::cuda
