// Parts of a weight as floats, and products with a range of a layer's outputs at a time.
#pragma once

#include <vector>

#include "dofla/ops/matmul.h"

namespace dofla::cpu {

// The part of a matrix that begins at (row, column), in float32 and with the factors of a scaled
// tensor; rows of `to` are `columns` apart.
struct MatrixPart {
  int64_t row = 0, rows = 1;
  int64_t column = 0, columns = 0;
};
void widen(const Tensor& matrix, const MatrixPart& part, float* to);

// A panel is a range of outputs: small enough that its widened weights stay in a core's cache
// while the rows of x pass by, large enough that sgemm runs at its full rate.
constexpr int64_t kPanelOutputs = 192;

inline int64_t panel_count(const Linear& linear) {
  return (linear.outputs() + kPanelOutputs - 1) / kPanelOutputs;
}

// y = x W + beta · y for the outputs [begin, end), without bias; rows of y are y_stride apart.
// `widened` is a workspace for weights of 16 and 8 bits.
void multiply_panel(const Tensor& x, const Linear& linear, int64_t begin, int64_t end, float beta,
                    std::vector<float>& widened, float* y, int64_t y_stride);

}  // namespace dofla::cpu
