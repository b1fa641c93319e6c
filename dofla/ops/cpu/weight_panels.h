// Parts of a weight as floats, and products with a range of a layer's outputs at a time.
#pragma once

#include <vector>

#include "dofla/ops/cpu/tile_products.h"
#include "dofla/ops/matmul.h"

namespace dofla::cpu {

// The part of a matrix that begins at (row, column), in float32 and with the factors of a scaled
// tensor; rows of `to` are `columns` apart.
struct MatrixPart {
  int64_t row = 0, rows = 1;
  int64_t column = 0, columns = 0;
};
void widen(const Tensor& matrix, const MatrixPart& part, float* to);

// A panel is a range of outputs: small enough that its weights stay in a core's cache while the
// rows of x pass by, large enough that products run at their full rate. So many outputs it has at
// most.
int64_t panel_outputs();
// Of a whole layer, whose panels are shared by all cores, so many. Tiles give an output the same
// bits in any panel; with them every core gets as much as the others.
int64_t fair_panel_outputs(int64_t outputs);

// What a thread needs to multiply with a panel: its weights as floats or as tiles.
struct PanelWorkspace {
  std::vector<float> widened;
  TileMatrix tiles;
};

// Part of the activations that meets one panel after another: where the processor has tile
// products, as tiles, which all cores make together when it is constructed. There is one at a time
// in a thread, whose memory it leaves to the next.
class PanelRows {
 public:
  explicit PanelRows(const Tensor& x, const MatrixPart& part);  // x [R, K]

  // y = x W, or y += x W, of this part for the outputs [begin, end), without bias, on the calling
  // thread; rows of y are y_stride apart.
  void multiply(const Linear& linear, int64_t begin, int64_t end, bool add,
                PanelWorkspace& workspace, float* y, int64_t y_stride) const;

 private:
  const float* x_;
  int64_t stride_;  // between rows of x
  MatrixPart part_;
  const TileMatrix* tiles_ = nullptr;
};

// Parts that are large enough for the full rate, and whose tiles take little memory: all of x, or
// with tiles a range of rows, and of at most so many inputs.
struct PanelParts {
  int64_t rows = 0, inputs = 0;
};
PanelParts panel_parts(const Tensor& x);

}  // namespace dofla::cpu
