#include "dofla/ops/cpu/weight_panels.h"

#include <algorithm>

#include "dofla/core/parallel.h"
#include "dofla/ops/cpu/sgemm.h"
#include "dofla/ops/cpu/vector_rows.h"
#include "dofla/ops/cpu/weight_rows.h"

namespace dofla::cpu {
namespace {

template <class T>
void widen_as(const Tensor& matrix, const MatrixPart& part, float* to) {
  const T* from = matrix.data<T>() + part.row * matrix.size(1) + part.column;
  for (int64_t i = 0; i < part.rows; ++i)
    widen(from + i * matrix.size(1), part.columns, to + i * part.columns);
}

void multiply_by_factors(const Tensor& matrix, const MatrixPart& part, float* to) {
  const auto* factors = matrix.factors().data<float>();
  for (int64_t i = 0; i < part.rows; ++i, to += part.columns)
    if (matrix.has_row_factors())
      scale_row(factors[part.row + i], part.columns, to);
    else
      multiply(factors + part.column, part.columns, to);
}

}  // namespace

void widen(const Tensor& matrix, const MatrixPart& part, float* to) {
  switch (matrix.dtype()) {
    case DType::kF32:
      return widen_as<float>(matrix, part, to);
    case DType::kF16:
      return widen_as<Float16>(matrix, part, to);
    case DType::kBF16:
      return widen_as<BFloat16>(matrix, part, to);
    default:
      require(matrix.is_scaled(), "a matrix of {} holds no floats", name(matrix.dtype()));
      widen_as<int8_t>(matrix, part, to);
      multiply_by_factors(matrix, part, to);
  }
}

int64_t panel_outputs() {
  return has_tile_products() ? 512 : 192;
}

int64_t fair_panel_outputs(int64_t outputs) {
  if (!has_tile_products()) return panel_outputs();
  const int64_t cores = thread_count(), most = panel_outputs() * cores;
  const int64_t panels = (outputs + most - 1) / most * cores;
  return ((outputs + panels - 1) / panels + TileMatrix::kBand - 1) / TileMatrix::kBand *
         TileMatrix::kBand;
}

PanelParts panel_parts(const Tensor& x) {
  if (!has_tile_products()) return {x.size(0), x.size(1)};
  constexpr int64_t kInputs = 8192, kMemory = int64_t{16} << 20, kBytes = 6;  // three parts of bf16
  const int64_t inputs = std::min(kInputs, x.size(1));
  return {std::min(kMemory / (kBytes * inputs), x.size(0)), inputs};
}

PanelRows::PanelRows(const Tensor& x, const MatrixPart& part)
    : x_(x.data<float>() + part.row * x.size(1) + part.column), stride_(x.size(1)), part_(part) {
  if (!has_tile_products()) return;
  thread_local TileMatrix tiles;
  tiles.reset(
      TileSide::kLeft,
      {.data = x_, .rows = part.rows, .inner = part.columns, .row_step = stride_, .inner_step = 1});
  fill_bands(tiles);
  tiles_ = &tiles;
}

void PanelRows::multiply(const Linear& linear, int64_t begin, int64_t end, bool add,
                         PanelWorkspace& workspace, float* y, int64_t y_stride) const {
  const int64_t inputs = part_.columns, width = end - begin;
  const Tensor& weight = linear.weight;
  const MatrixPart panel =
      linear.input_major
          ? MatrixPart{.row = part_.column, .rows = inputs, .column = begin, .columns = width}
          : MatrixPart{.row = begin, .rows = width, .column = part_.column, .columns = inputs};
  const void* from = nullptr;
  DType dtype = weight.dtype();
  int64_t stride = weight.size(1);
  if (dtype == DType::kF32 || (tiles_ != nullptr && !weight.is_scaled())) {
    from = static_cast<const std::byte*>(weight.raw()) +
           (panel.row * stride + panel.column) * size_in_bytes(dtype);
  } else {
    workspace.widened.resize(static_cast<size_t>(width * inputs));
    widen(weight, panel, workspace.widened.data());
    from = workspace.widened.data();
    dtype = DType::kF32;
    stride = panel.columns;
  }
  if (tiles_ == nullptr)
    return sgemm({.transpose_b = !linear.input_major, .beta = add ? 1.0f : 0.0f}, part_.rows, width,
                 inputs, x_, stride_, static_cast<const float*>(from), stride, y, y_stride);
  TileMatrix& tiles = workspace.tiles;
  tiles.reset(TileSide::kRight, {.data = from,
                                 .dtype = dtype,
                                 .rows = width,
                                 .inner = inputs,
                                 .row_step = linear.input_major ? 1 : stride,
                                 .inner_step = linear.input_major ? stride : 1});
  for (int64_t band = 0; band < tiles.bands(); ++band) tiles.fill_band(band);
  multiply_tiles(*tiles_, {0, tiles_->bands()}, tiles, {0, tiles.bands()}, add, y, y_stride);
}

}  // namespace dofla::cpu
