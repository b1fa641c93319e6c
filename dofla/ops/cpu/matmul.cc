#include "dofla/ops/cpu/matmul.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "dofla/core/parallel.h"
#include "dofla/ops/cpu/sgemm.h"
#include "dofla/ops/cpu/vector_rows.h"
#include "dofla/ops/cpu/weight_rows.h"

namespace dofla::cpu {
namespace {

// A panel is a range of outputs: small enough that its widened weights stay in a core's cache
// while the rows of x pass by, large enough that sgemm runs at its full rate.
constexpr int64_t kPanelOutputs = 192;

int64_t panel_count(const Linear& linear) {
  return (linear.outputs() + kPanelOutputs - 1) / kPanelOutputs;
}

template <class T>
void widen_panel(const Linear& linear, int64_t begin, int64_t end, float* to) {
  const T* weight = linear.weight.data<T>();
  const int64_t inputs = linear.inputs(), outputs = linear.outputs(), width = end - begin;
  if (!linear.input_major) return widen(weight + begin * inputs, width * inputs, to);
  for (int64_t k = 0; k < inputs; ++k) widen(weight + k * outputs + begin, width, to + k * width);
}

// Outputs [begin, end) of all rows, without bias, into y with rows of y_stride.
void multiply_panel(const Tensor& x, const Linear& linear, int64_t begin, int64_t end, float beta,
                    std::vector<float>& scratch, float* y, int64_t y_stride) {
  const int64_t inputs = linear.inputs(), width = end - begin;
  const float* panel = nullptr;
  int64_t stride = linear.input_major ? width : inputs;
  if (linear.weight.dtype() == DType::kF32) {
    panel = linear.weight.data<float>() + (linear.input_major ? begin : begin * inputs);
    stride = linear.input_major ? linear.outputs() : inputs;
  } else {
    scratch.resize(static_cast<size_t>(width * inputs));
    if (linear.weight.dtype() == DType::kBF16)
      widen_panel<BFloat16>(linear, begin, end, scratch.data());
    else
      widen_panel<Float16>(linear, begin, end, scratch.data());
    panel = scratch.data();
  }
  sgemm({.transpose_b = !linear.input_major, .beta = beta}, x.size(0), width, inputs,
        x.data<float>(), inputs, panel, stride, y, y_stride);
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
  constexpr int64_t kShares = 8;
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

}  // namespace

void matmul(const Tensor& x, const Linear& linear, Tensor& y) {
  start_with_bias(linear, y);
  if (x.size(0) <= kFewRows)
    return linear.input_major ? multiply_few_rows_input_major(x, linear, y)
                              : multiply_few_rows_output_major(x, linear, y);
  const int64_t outputs = linear.outputs();
  parallel_for(panel_count(linear), [&](int64_t i) {
    thread_local std::vector<float> scratch;
    const int64_t begin = i * kPanelOutputs, end = std::min(outputs, begin + kPanelOutputs);
    multiply_panel(x, linear, begin, end, 1, scratch, y.data<float>() + begin, outputs);
  });
}

void cross_entropy(const Tensor& x, const Linear& head, const Tensor& targets, Tensor& loss) {
  const int64_t rows = x.size(0), panels = panel_count(head), outputs = head.outputs();
  const int64_t* target = targets.data<int64_t>();
  const float* bias = head.bias.defined() ? std::as_const(head.bias).data<float>() : nullptr;
  // Every panel leaves a log-sum-exp a row; they are joined in order, whoever computed them.
  std::vector<float> panel_lse(static_cast<size_t>(rows * panels));
  std::vector<float> target_logit(static_cast<size_t>(rows));
  parallel_for(panels, [&](int64_t i) {
    thread_local std::vector<float> scratch, logits;
    const int64_t begin = i * kPanelOutputs, end = std::min(outputs, begin + kPanelOutputs);
    const int64_t width = end - begin;
    logits.resize(static_cast<size_t>(rows * width));
    multiply_panel(x, head, begin, end, 0, scratch, logits.data(), width);
    for (int64_t r = 0; r < rows; ++r) {
      float* row = logits.data() + r * width;
      if (bias != nullptr)
        for (int64_t n = 0; n < width; ++n) row[n] += bias[begin + n];
      if (target[r] >= begin && target[r] < end)
        target_logit[static_cast<size_t>(r)] = row[target[r] - begin];
      panel_lse[static_cast<size_t>(r * panels + i)] = log_sum_exp(row, width);
    }
  });
  for (int64_t r = 0; r < rows; ++r) {
    const float lse = log_sum_exp(panel_lse.data() + r * panels, panels);
    loss.data<float>()[r] = lse - target_logit[static_cast<size_t>(r)];
  }
}

}  // namespace dofla::cpu
