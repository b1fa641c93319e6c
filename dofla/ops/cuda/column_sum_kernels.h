// Sums over rows, column by column, in two launches: many blocks each sum some of the rows, and
// what they found is added in the order of the blocks.
#pragma once

#include "dofla/ops/cuda/element.h"

namespace dofla::cuda {

// How many blocks share the rows of a column.
int64_t column_sum_blocks(Element element, int64_t rows, int64_t columns);
cudaError_t launch_column_sums(Element element,
                               const void* x,  // [rows, columns]
                               int64_t rows, int64_t columns,
                               float* sums,  // [column_sum_blocks, columns]
                               cudaStream_t stream);

// first[c] += Σ_b sums[b, 0, c] and second[c] += Σ_b sums[b, 1, c]. Without a second there is one
// row of sums a block; what is null is not added.
cudaError_t launch_add_sums(const float* sums,  // [blocks, 1 or 2, columns]
                            int64_t blocks, int64_t columns, float* first, float* second,
                            cudaStream_t stream);

}  // namespace dofla::cuda
