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

int64_t panel_rows_at_once(const Tensor& x) {
  if (!has_tile_products()) return x.size(0);
  constexpr int64_t kMemory = int64_t{16} << 20, kBytes = 6, kLeast = 256;  // three parts of bf16
  return std::clamp(kMemory / (kBytes * x.size(1)), std::min(kLeast, x.size(0)), x.size(0));
}

PanelRows::PanelRows(const Tensor& x, int64_t first, int64_t count)
    : x_(x.data<float>() + first * x.size(1)), count_(count) {
  if (!has_tile_products()) return;
  thread_local TileMatrix tiles;
  const int64_t inputs = x.size(1);
  tiles.reset(TileSide::kLeft,
              {.data = x_, .rows = count, .inner = inputs, .row_step = inputs, .inner_step = 1});
  fill_bands(tiles);
  tiles_ = &tiles;
}

void PanelRows::multiply(const Linear& linear, int64_t begin, int64_t end, bool add,
                         PanelWorkspace& workspace, float* y, int64_t y_stride) const {
  const int64_t inputs = linear.inputs(), width = end - begin;
  const Tensor& weight = linear.weight;
  // Where the first weight of the panel lies, and how far apart its stored rows are.
  int64_t first = linear.input_major ? begin : begin * inputs, stride = weight.size(1);
  const void* panel =
      static_cast<const std::byte*>(weight.raw()) + first * size_in_bytes(weight.dtype());
  DType dtype = weight.dtype();
  const bool as_stored = dtype == DType::kF32 || (tiles_ != nullptr && !weight.is_scaled());
  if (!as_stored) {
    const MatrixPart part = linear.input_major
                                ? MatrixPart{.rows = inputs, .column = begin, .columns = width}
                                : MatrixPart{.row = begin, .rows = width, .columns = inputs};
    workspace.widened.resize(static_cast<size_t>(width * inputs));
    widen(weight, part, workspace.widened.data());
    panel = workspace.widened.data();
    dtype = DType::kF32;
    stride = linear.input_major ? width : inputs;
  }
  if (tiles_ == nullptr)
    return sgemm({.transpose_b = !linear.input_major, .beta = add ? 1.0f : 0.0f}, count_, width,
                 inputs, x_, inputs, static_cast<const float*>(panel), stride, y, y_stride);
  TileMatrix& tiles = workspace.tiles;
  tiles.reset(TileSide::kRight, {.data = panel,
                                 .dtype = dtype,
                                 .rows = width,
                                 .inner = inputs,
                                 .row_step = linear.input_major ? 1 : stride,
                                 .inner_step = linear.input_major ? stride : 1});
  for (int64_t band = 0; band < tiles.bands(); ++band) tiles.fill_band(band);
  multiply_tiles(*tiles_, {0, tiles_->bands()}, tiles, {0, tiles.bands()}, add, y, y_stride);
}

}  // namespace dofla::cpu
