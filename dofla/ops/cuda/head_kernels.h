// Heads from one place to another, and rotary position embedding.
#pragma once

#include "dofla/ops/cuda/head_rows.h"

namespace dofla::cuda {

struct HeadShape {
  Element element;
  int64_t batch, heads, tokens, width;
};

cudaError_t launch_copy_heads(const HeadShape& shape, const HeadRows& from, const HeadRowsOut& to,
                              cudaStream_t stream);

// Rotates coordinate i with i + pairs by position · frequencies[i], for i < pairs, in place.
struct Rotation {
  int64_t first_position;  // of every sequence
  int64_t pairs;
  const float* frequencies;  // [pairs]
};
cudaError_t launch_rotate(const HeadShape& shape, const Rotation& rotation, const HeadRowsOut& x,
                          cudaStream_t stream);

}  // namespace dofla::cuda
