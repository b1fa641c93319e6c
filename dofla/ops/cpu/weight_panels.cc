#include "dofla/ops/cpu/weight_panels.h"

#include "dofla/ops/cpu/sgemm.h"
#include "dofla/ops/cpu/weight_rows.h"

namespace dofla::cpu {
namespace {

template <class T>
void widen_panel(const Linear& linear, int64_t begin, int64_t end, float* to) {
  const T* weight = linear.weight.data<T>();
  const int64_t inputs = linear.inputs(), outputs = linear.outputs(), width = end - begin;
  if (!linear.input_major) return widen(weight + begin * inputs, width * inputs, to);
  for (int64_t k = 0; k < inputs; ++k) widen(weight + k * outputs + begin, width, to + k * width);
}

}  // namespace

void multiply_panel(const Tensor& x, const Linear& linear, int64_t begin, int64_t end, float beta,
                    std::vector<float>& widened, float* y, int64_t y_stride) {
  const int64_t inputs = linear.inputs(), width = end - begin;
  const float* panel = nullptr;
  int64_t stride = linear.input_major ? width : inputs;
  if (linear.weight.dtype() == DType::kF32) {
    panel = linear.weight.data<float>() + (linear.input_major ? begin : begin * inputs);
    stride = linear.input_major ? linear.outputs() : inputs;
  } else {
    widened.resize(static_cast<size_t>(width * inputs));
    if (linear.weight.dtype() == DType::kBF16)
      widen_panel<BFloat16>(linear, begin, end, widened.data());
    else
      widen_panel<Float16>(linear, begin, end, widened.data());
    panel = widened.data();
  }
  sgemm({.transpose_b = !linear.input_major, .beta = beta}, x.size(0), width, inputs,
        x.data<float>(), inputs, panel, stride, y, y_stride);
}

}  // namespace dofla::cpu
