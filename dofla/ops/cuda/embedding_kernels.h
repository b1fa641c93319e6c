// Rows of a table by id.
#pragma once

#include "dofla/ops/cuda/element.h"

namespace dofla::cuda {

// out[i] = tokens[ids[i]] + positions[first[i / length] + i mod length]; every id and position lies
// in its table.
struct Embedding {
  Element element;
  int64_t count, width;
  const int64_t* ids;     // [count]
  const void* tokens;     // [V, width]
  const void* positions;  // [context, width], or null
  const int64_t* first;   // the position of every sequence's first token; null: 0
  int64_t length;         // tokens of every sequence
};
// An ordinary launch, with which a chain of overlapped ones can begin (overlap.cuh).
cudaError_t launch_embed(const Embedding& embedding, void* out,  // [count, width]
                         cudaStream_t stream);

// The rows of a gradient by the row of the table that they belong to: row ids[i] takes the rows
// order[starts[i]], …, order[starts[i + 1] − 1], in this order.
struct EmbeddedRows {
  int64_t count;          // of different ids
  const int64_t* ids;     // [count]
  const int64_t* starts;  // [count + 1]
  const int64_t* order;   // one a row of the gradient
};

// Adds the rows of `grad` to those of the table, whose gradient is float32.
cudaError_t launch_embed_backward(Element element, const void* grad, int64_t width,
                                  const EmbeddedRows& rows, float* grad_table, cudaStream_t stream);

}  // namespace dofla::cuda
