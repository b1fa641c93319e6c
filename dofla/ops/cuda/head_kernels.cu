#include "dofla/ops/cuda/head_kernels.h"
#include "dofla/ops/cuda/vector.cuh"

namespace dofla::cuda {
namespace {

constexpr int kThreads = 256;

// One thread moves one word of a head's vector; words are as wide as the layout allows.
template <class Word, bool kGather>
__global__ void move_heads(HeadLayout l, int64_t words, Word* __restrict__ rows,
                           Word* __restrict__ heads) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  const int64_t per_head = l.size / words, per_row = l.columns / words;
  if (i >= l.batch * l.tokens * l.heads * per_head) return;
  // Neighbouring threads read along a row: word, head, then token.
  const int64_t word = i % per_head, head = i / per_head % l.heads;
  const int64_t row = i / per_head / l.heads, b = row / l.tokens, t = row % l.tokens;
  Word& in_row = rows[row * per_row + (l.offset + head * l.stride) / words + word];
  Word& in_head = heads[((b * l.heads + head) * l.tokens + t) * per_head + word];
  if constexpr (kGather)
    in_head = in_row;
  else
    in_row = in_head;
}

template <bool kGather, class Word>
cudaError_t launch_move(const HeadLayout& l, int64_t words, void* rows, void* heads,
                        cudaStream_t stream) {
  const int64_t threads = l.batch * l.tokens * l.heads * (l.size / words);
  if (threads > 0)
    move_heads<Word, kGather><<<blocks_for(threads, kThreads), kThreads, 0, stream>>>(
        l, words, static_cast<Word*>(rows), static_cast<Word*>(heads));
  return cudaGetLastError();
}

template <bool kGather>
cudaError_t move(const HeadLayout& l, void* rows, void* heads, cudaStream_t stream) {
  const int64_t bytes = l.element == Element::kF32 ? 4 : 2, pack = 16 / bytes;
  if ((l.size | l.offset | l.stride | l.columns) % pack == 0 && aligned_to_packs(rows, heads))
    return launch_move<kGather, uint4>(l, pack, rows, heads, stream);
  return l.element == Element::kF32 ? launch_move<kGather, float>(l, 1, rows, heads, stream)
                                    : launch_move<kGather, uint16_t>(l, 1, rows, heads, stream);
}

template <class T>
__global__ void rotate_pairs(RotateArguments a, T* __restrict__ x) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i >= a.vectors * a.pairs) return;
  const int64_t pair = i % a.pairs, vector = i / a.pairs;
  const float position = static_cast<float>(a.first_position + vector % a.tokens);
  float sine, cosine;
  sincosf(position * a.frequencies[pair], &sine, &cosine);
  T* at = x + vector * a.size + pair;
  const float first = to_float(at[0]), second = to_float(at[a.pairs]);
  at[0] = from_float<T>(first * cosine - second * sine);
  at[a.pairs] = from_float<T>(second * cosine + first * sine);
}

}  // namespace

cudaError_t launch_gather_heads(const HeadLayout& layout, const void* rows, void* heads,
                                cudaStream_t stream) {
  return move<true>(layout, const_cast<void*>(rows), heads, stream);
}

cudaError_t launch_scatter_heads(const HeadLayout& layout, const void* heads, void* rows,
                                 cudaStream_t stream) {
  return move<false>(layout, rows, const_cast<void*>(heads), stream);
}

cudaError_t launch_rotate(const RotateArguments& arguments, void* x, cudaStream_t stream) {
  return with_type(arguments.element, [&](auto zero) {
    using T = decltype(zero);
    const int64_t threads = arguments.vectors * arguments.pairs;
    if (threads > 0)
      rotate_pairs<<<blocks_for(threads, kThreads), kThreads, 0, stream>>>(arguments,
                                                                           static_cast<T*>(x));
  });
}

}  // namespace dofla::cuda
