#include "dofla/ops/cpu/weight_panels.h"

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

void multiply_panel(const Tensor& x, const Linear& linear, int64_t begin, int64_t end, float beta,
                    std::vector<float>& widened, float* y, int64_t y_stride) {
  const int64_t inputs = linear.inputs(), width = end - begin;
  const float* panel = nullptr;
  int64_t stride = linear.input_major ? width : inputs;
  if (linear.weight.dtype() == DType::kF32) {
    panel = linear.weight.data<float>() + (linear.input_major ? begin : begin * inputs);
    stride = linear.input_major ? linear.outputs() : inputs;
  } else {
    const MatrixPart part = linear.input_major
                                ? MatrixPart{.rows = inputs, .column = begin, .columns = width}
                                : MatrixPart{.row = begin, .rows = width, .columns = inputs};
    widened.resize(static_cast<size_t>(width * inputs));
    widen(linear.weight, part, widened.data());
    panel = widened.data();
  }
  sgemm({.transpose_b = !linear.input_major, .beta = beta}, x.size(0), width, inputs,
        x.data<float>(), inputs, panel, stride, y, y_stride);
}

}  // namespace dofla::cpu
