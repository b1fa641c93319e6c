// Heads from one place to another, their RMS norm and their rotary position embedding.
#pragma once

#include "dofla/ops/cuda/head_rows.h"

namespace dofla::cuda {

struct HeadShape {
  Element element;
  int64_t batch, heads, tokens, width;
};

// Token t of sequence b goes to token past[b] + t, or to token t where `past` is null.
cudaError_t launch_copy_heads(const HeadShape& shape, const HeadRows& from, const int64_t* past,
                              const HeadRowsOut& to, cudaStream_t stream);

// From BF16 to heads in float32 that lie together.
cudaError_t launch_widen_heads(const HeadShape& shape, const HeadRows& from,
                               float* to,  // [B, H, T, D]
                               cudaStream_t stream);

// Rotates coordinate i with i + pairs by sign · position · frequencies[i], for i < pairs.
struct Rotation {
  const int64_t* first;  // [batch], the position of every sequence's first token; null: 0
  int64_t pairs;
  const float* frequencies;  // [pairs]
  float sign;
};
cudaError_t launch_rotate(const HeadShape& shape, const Rotation& rotation, const HeadRowsOut& x,
                          cudaStream_t stream);

// Queries and keys of one token of every sequence: first their RMS norm, then their rotation.
struct PlacedHeads {
  struct Part {
    HeadRows from;
    HeadRowsOut to;  // may be where they come from
    int64_t heads;
    const float* norm;  // [width], the weight of their RMS norm, or null
  };
  Part q, k;
  float epsilon;
  Rotation rotation;
};
// `shape` is that of the queries, with one token and a width of at most kWidestHead. Overlaps with
// the launch ahead (overlap.cuh).
cudaError_t launch_place_heads(const HeadShape& shape, const PlacedHeads& heads,
                               cudaStream_t stream);

}  // namespace dofla::cuda
