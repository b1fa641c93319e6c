// Products with a head a panel of rows at a time: the logits of a whole batch never exist at once.
#pragma once

#include <algorithm>

#include "dofla/ops/cuda/cross_entropy_kernels.h"
#include "dofla/ops/cuda/gemm.h"
#include "dofla/ops/cuda/tensors.h"
#include "dofla/ops/matmul.h"

namespace dofla::cuda {

// Rows whose logits exist at a time: enough to fill the GPU, never the whole batch's.
constexpr int64_t kPanelRows = 4096;

inline Matrix rows_of(const Tensor& x) {
  return {x.raw(), element_of(x), x.size(1)};
}

// The weight as the right-hand side [K, N] of a product.
inline Matrix weight_of(const Linear& linear) {
  return {linear.weight.raw(), element_of(linear.weight), linear.weight.size(1),
          !linear.input_major};
}

// cuBLASLt is several times slower where an extent is not a multiple of 8: the vocabulary is taken
// in two parts, and the few tokens after the last such multiple are a product of their own.
template <class Body>
void for_each_part(int64_t vocabulary, const Body& body) {
  const int64_t even = vocabulary / 8 * 8;
  if (even > 0) body(0, even);
  if (even < vocabulary) body(even, vocabulary - even);
}

// A matrix without its first rows or columns.
inline Matrix from_row(Matrix m, int64_t row) {
  const int64_t bytes = m.element == Element::kF32 ? 4 : 2;
  m.data = static_cast<const std::byte*>(m.data) + row * bytes * (m.transposed ? 1 : m.stride);
  return m;
}
inline Matrix from_column(Matrix m, int64_t column) {
  m.transposed = !m.transposed;
  m = from_row(m, column);
  m.transposed = !m.transposed;
  return m;
}

// Products of rows [begin, end) of x with the weight, in rows of the panel's length.
inline void fill_panel(const Tensor& x, const Linear& head, int64_t begin, int64_t end,
                       Tensor& logits) {
  for_each_part(head.outputs(), [&](int64_t first, int64_t count) {
    const Matrix to = from_column(rows_of(logits), first);
    gemm(x.device().context(), {}, end - begin, count, head.inputs(), rows_of(x.slice(begin, end)),
         from_column(weight_of(head), first), const_cast<void*>(to.data), to.element, to.stride);
  });
}

// Memory for the logits of a panel, with rows padded to a multiple of 64.
inline Tensor new_panel(const Tensor& x, const Linear& head, DType type) {
  const int64_t stride = (head.outputs() + 63) / 64 * 64;
  return Tensor({std::min(x.size(0), kPanelRows), stride}, type, x.device());
}

// The rows of x in panels, each with its products with the weight:
// body(begin, end, panel, logits).
template <class Body>
void for_each_panel(const Tensor& x, const Linear& head, DType type, const Body& body) {
  const int64_t rows = x.size(0);
  Tensor logits = new_panel(x, head, type);
  for (int64_t begin = 0; begin < rows; begin += kPanelRows) {
    const int64_t end = std::min(rows, begin + kPanelRows);
    fill_panel(x, head, begin, end, logits);
    body(begin, end, LogitPanel{element_of(logits), end - begin, head.outputs(), logits.size(1)},
         logits);
  }
}

}  // namespace dofla::cuda
