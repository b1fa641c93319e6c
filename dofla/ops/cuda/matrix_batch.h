// Many float64 matrices of the same extent, row-major and at even distances.
#pragma once

#include <cstdint>

namespace dofla::cuda {

struct MatrixBatch {
  double* data;             // the first matrix
  int64_t stride;           // from row to row
  int64_t distance;         // from matrix to matrix
  bool transposed = false;  // read as its transpose

  // The same matrices without what lies above `row` and left of `column`.
  MatrixBatch at(int64_t row, int64_t column) const {
    return {data + row * stride + column, stride, distance, transposed};
  }
  MatrixBatch transpose() const { return {data, stride, distance, !transposed}; }
};

}  // namespace dofla::cuda
