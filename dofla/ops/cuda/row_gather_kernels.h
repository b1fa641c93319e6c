// Rows of heads picked by an index, and added back to where they came from.
#pragma once

#include "dofla/ops/cuda/head_rows.h"

namespace dofla::cuda {

// The index of a head serves heads / index_heads heads; one sequence's serves all where
// index_batch is 1.
struct RowGatherShape {
  Element element;
  int64_t batch, heads;
  int64_t picked;  // n: rows that the index names
  int64_t width;   // D
  int64_t index_batch, index_heads;
};

// Rows that the index does not name, −1, become 0.
cudaError_t launch_gather_rows(const RowGatherShape& shape,
                               const HeadRows& x,       // [B, X, N, D]
                               const int32_t* index,    // [B or 1, Hi, n]
                               const HeadRowsOut& out,  // [B, X, n, D]
                               cudaStream_t stream);

// No row is named twice.
cudaError_t launch_add_rows(const RowGatherShape& shape,
                            const HeadRows& from,  // [B, X, n, D]
                            const int32_t* index,
                            const HeadRowsOut& to,  // [B, X, N, D]
                            cudaStream_t stream);

}  // namespace dofla::cuda
