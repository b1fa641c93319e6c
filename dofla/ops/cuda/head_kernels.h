// Between the rows of a projection and heads, and rotary position embedding.
#pragma once

#include "dofla/ops/cuda/element.h"

namespace dofla::cuda {

struct HeadLayout {
  Element element;
  int64_t batch, heads, tokens, size;
  int64_t columns;         // of a row
  int64_t offset, stride;  // head h takes columns [offset + h·stride, … + size)
};

// rows [B·T, columns] -> heads [B, H, T, D], and back (other columns of the rows are left alone).
cudaError_t launch_gather_heads(const HeadLayout& layout, const void* rows, void* heads,
                                cudaStream_t stream);
cudaError_t launch_scatter_heads(const HeadLayout& layout, const void* heads, void* rows,
                                 cudaStream_t stream);

// Rotates coordinate i with i + pairs by position · frequencies[i], for i < pairs, in place.
struct RotateArguments {
  Element element;
  int64_t vectors;         // B·H·T
  int64_t tokens, size;    // T, D
  int64_t first_position;  // of every sequence
  int64_t pairs;
  const float* frequencies;  // [pairs]
};
cudaError_t launch_rotate(const RotateArguments& arguments, void* x, cudaStream_t stream);

}  // namespace dofla::cuda
