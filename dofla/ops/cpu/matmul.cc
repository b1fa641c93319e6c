#include "dofla/ops/matmul.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "dofla/core/parallel.h"
#include "dofla/ops/cpu/scaled_products.h"
#include "dofla/ops/cpu/sgemm.h"
#include "dofla/ops/cpu/tile_products.h"
#include "dofla/ops/cpu/vector_rows.h"
#include "dofla/ops/cpu/weight_panels.h"
#include "dofla/ops/cpu/weight_rows.h"

namespace dofla::cpu {
namespace {

int64_t ceil_divide(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

void start_with_bias(const Linear& linear, Tensor& y) {
  const int64_t outputs = linear.outputs();
  const float* bias = linear.bias.defined() ? std::as_const(linear.bias).data<float>() : nullptr;
  for (int64_t r = 0; r < y.size(0); ++r) {
    float* row = y.data<float>() + r * outputs;
    if (bias != nullptr)
      std::copy_n(bias, outputs, row);
    else
      std::fill_n(row, outputs, 0.0f);
  }
}

const void* weight_row(const Tensor& weight, int64_t row) {
  return static_cast<const std::byte*>(weight.raw()) +
         row * weight.size(1) * size_in_bytes(weight.dtype());
}

// Decoding reads every weight once, in the order it is stored, each core its own share of rows.
void multiply_few_rows_output_major(const Tensor& x, const Linear& linear, Tensor& y) {
  const int64_t inputs = linear.inputs(), outputs = linear.outputs();
  const int64_t share = (outputs + thread_count() - 1) / thread_count();
  float* to = y.data<float>();
  parallel_for((outputs + share - 1) / share, [&](int64_t i) {
    const int64_t begin = i * share, end = std::min(outputs, begin + share);
    multiply_output_major(weight_row(linear.weight, begin), linear.weight.dtype(), inputs,
                          end - begin, x.data<float>(), inputs, x.size(0), to + begin, outputs);
  });
}

// Here a share of rows is a share of the inputs, which adds to every output: partial sums, joined
// in an order that does not depend on the number of cores.
void multiply_few_rows_input_major(const Tensor& x, const Linear& linear, Tensor& y) {
  constexpr int64_t kShares = kInputShares;
  const int64_t inputs = linear.inputs(), outputs = linear.outputs(), rows = x.size(0);
  const int64_t share = (inputs + kShares - 1) / kShares;
  std::vector<float> partial(static_cast<size_t>(kShares * rows * outputs), 0.0f);
  parallel_for(kShares, [&](int64_t i) {
    const int64_t begin = i * share, end = std::min(inputs, begin + share);
    if (begin < end)
      multiply_input_major(weight_row(linear.weight, begin), linear.weight.dtype(), end - begin,
                           outputs, x.data<float>() + begin, inputs, rows,
                           partial.data() + i * rows * outputs, outputs);
  });
  for (int64_t i = 0; i < kShares; ++i)
    add_scaled(partial.data() + i * rows * outputs, 1, rows * outputs, y.data<float>());
}

// The same sums for more rows: a task has a range of outputs, which meets all rows.
void multiply_many_rows_input_major(const Tensor& x, const Linear& linear, Tensor& y) {
  const int64_t inputs = linear.inputs(), outputs = linear.outputs();
  const int64_t width = fair_columns(outputs, thread_count());
  const auto* weight = static_cast<const std::byte*>(linear.weight.raw());
  const DType type = linear.weight.dtype();
  float* to = y.data<float>();
  parallel_for(ceil_divide(outputs, width), [&](int64_t i) {
    const int64_t begin = i * width, columns = std::min(width, outputs - begin);
    multiply_input_major_columns(weight + begin * size_in_bytes(type), type, inputs, outputs,
                                 columns, x.data<float>(), inputs, x.size(0), to + begin, outputs);
  });
}

// A task's part of a weight gradient, of a fixed size: the sums come out the same for any number
// of cores.
constexpr int64_t kTileRows = 128;
constexpr int64_t kTileColumns = 512;

// Calls multiply(i, j) for the first row and column of every such part.
template <class Multiply>
void for_each_part(int64_t rows, int64_t columns, const Multiply& multiply) {
  const int64_t across = ceil_divide(columns, kTileColumns);
  parallel_for(ceil_divide(rows, kTileRows) * across, [&](int64_t task) {
    multiply(task / across * kTileRows, task % across * kTileColumns);
  });
}

// to += aᵀ b for a [R, rows] and b [R, columns], with tiles of some of the R at a time.
void add_transposed_tiles(const Tensor& a, const Tensor& b, float* to) {
  constexpr int64_t kInner = 512, kBand = TileMatrix::kBand;
  thread_local TileMatrix left_tiles, right_tiles;
  TileMatrix &left = left_tiles, &right = right_tiles;  // of this thread, for all of its loops
  const int64_t rows = a.size(1), columns = b.size(1);
  for (int64_t first = 0; first < a.size(0); first += kInner) {
    const int64_t inner = std::min(kInner, a.size(0) - first);
    const auto some = [&](const Tensor& x) {
      return TileSource{.data = x.data<float>() + first * x.size(1),
                        .rows = x.size(1),
                        .inner = inner,
                        .row_step = 1,
                        .inner_step = x.size(1)};
    };
    left.reset(TileSide::kLeft, some(a));
    right.reset(TileSide::kRight, some(b));
    fill_bands(left);
    fill_bands(right);
    for_each_part(rows, columns, [&](int64_t i, int64_t j) {
      multiply_tiles(left, {i / kBand, std::min((i + kTileRows) / kBand, left.bands())}, right,
                     {j / kBand, std::min((j + kTileColumns) / kBand, right.bands())}, true, to,
                     columns);
    });
  }
}

// to += aᵀ b for a [R, rows] and b [R, columns].
void add_transposed_product(const Tensor& a, const Tensor& b, float* to) {
  if (has_tile_products() && a.size(0) >= TileMatrix::kBand) return add_transposed_tiles(a, b, to);
  const int64_t rows = a.size(1), columns = b.size(1);
  for_each_part(rows, columns, [&](int64_t i, int64_t j) {
    const SingleThreaded alone;
    sgemm({.transpose_a = true, .beta = 1}, std::min(kTileRows, rows - i),
          std::min(kTileColumns, columns - j), a.size(0), a.data<float>() + i, rows,
          b.data<float>() + j, columns, to + i * columns + j, columns);
  });
}

// to += the sum of the rows.
void add_rows(const Tensor& rows, float* to) {
  const int64_t width = rows.size(1);
  parallel_for(ceil_divide(width, kTileColumns), [&](int64_t task) {
    const int64_t begin = task * kTileColumns, count = std::min(kTileColumns, width - begin);
    for (int64_t r = 0; r < rows.size(0); ++r)
      add_scaled(rows.data<float>() + r * width + begin, 1, count, to + begin);
  });
}

// y += W x for up to kManyRows rows.
void add_product_of_floats(const Tensor& x, const Linear& linear, Tensor& y) {
  if (!linear.input_major) return multiply_few_rows_output_major(x, linear, y);
  if (x.size(0) <= kFewRows) return multiply_few_rows_input_major(x, linear, y);
  multiply_many_rows_input_major(x, linear, y);
}

void matmul(const Tensor& x, const Linear& linear, Tensor& y) {
  start_with_bias(linear, y);
  if (x.size(0) <= kManyRows)
    return linear.weight.is_scaled() ? add_scaled_product(x, linear, y)
                                     : add_product_of_floats(x, linear, y);
  const int64_t outputs = linear.outputs(), width = fair_panel_outputs(outputs);
  const PanelParts parts = panel_parts(x);
  for (int64_t row = 0; row < x.size(0); row += parts.rows)
    for (int64_t input = 0; input < x.size(1); input += parts.inputs) {
      const PanelRows some(x, {.row = row,
                               .rows = std::min(parts.rows, x.size(0) - row),
                               .column = input,
                               .columns = std::min(parts.inputs, x.size(1) - input)});
      parallel_for(ceil_divide(outputs, width), [&](int64_t i) {
        thread_local PanelWorkspace workspace;
        const int64_t begin = i * width, end = std::min(outputs, begin + width);
        some.multiply(linear, begin, end, true, workspace, y.data<float>() + row * outputs + begin,
                      outputs);
      });
    }
}

void add_weight_gradient(const Tensor& x, const Tensor& grad_y, Linear& gradient) {
  float* weight = gradient.weight.data<float>();
  if (gradient.input_major)
    add_transposed_product(x, grad_y, weight);
  else
    add_transposed_product(grad_y, x, weight);
  if (gradient.bias.defined()) add_rows(grad_y, gradient.bias.data<float>());
}

}  // namespace

const MatmulBackend kMatmul = {.matmul = matmul, .add_weight_gradient = add_weight_gradient};

}  // namespace dofla::cpu
