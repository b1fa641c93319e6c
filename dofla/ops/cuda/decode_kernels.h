// The small steps of decoding one token of every sequence.
#pragma once

#include "dofla/ops/cuda/element.h"

namespace dofla::cuda {

// x[b] = tokens[ids[b]] + positions[where[b]]; every id and position lies in its table.
struct TokenEmbedding {
  Element element;
  int64_t batch, width;
  const void* tokens;     // [V, width]
  const void* positions;  // [context, width], or null
  const int64_t* ids;     // [batch]
  const int64_t* where;   // [batch]
};
// An ordinary launch, with which a chain of overlapped ones can begin.
cudaError_t launch_embed_tokens(const TokenEmbedding& embedding, void* x,  // [batch, width]
                                cudaStream_t stream);

// Head vectors inside the rows of a projection.
struct HeadVectors {
  void* rows;  // [batch, columns]
  int64_t columns, heads;
  int64_t offset, stride;  // head h takes columns [offset + h·stride, … + size)
  const float* norm;       // [size], the weight of their RMS norm, or null
};

// Queries and keys, where they stand: first their RMS norm, then rotated by position · frequencies,
// coordinate i with i + pairs.
struct PlacedHeads {
  Element element;
  int64_t batch, size;  // size <= kWidestHead
  HeadVectors q, k;
  float epsilon;
  int64_t pairs;
  const float* frequencies;  // [pairs]
  const int64_t* where;      // [batch], positions
};
// Overlaps with the launch ahead (overlap.cuh).
cudaError_t launch_place_heads(const PlacedHeads& heads, cudaStream_t stream);

}  // namespace dofla::cuda
