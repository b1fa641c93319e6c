#include "dofla/ops/cpu/scaled_products.h"

#include <algorithm>
#include <vector>

#include "dofla/core/parallel.h"
#include "dofla/ops/cpu/vector_rows.h"
#include "dofla/ops/cpu/weight_rows.h"
#include "dofla/ops/cpu/whole_rows.h"

namespace dofla::cpu {
namespace {

int64_t divide_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Rows of x as whole numbers, x[r] ≈ step[r] · whole[r].
struct WholeRows {
  explicit WholeRows(const Tensor& x)
      : count(x.size(0)),
        width(x.size(1)),
        whole(static_cast<size_t>(count * width)),
        step(static_cast<size_t>(count)) {
    parallel_rows(count, [&, from = x.data<float>()](int64_t r) {
      step[static_cast<size_t>(r)] = round_row(from + r * width, width, whole.data() + r * width);
    });
  }

  int64_t count, width;
  std::vector<int16_t> whole;
  std::vector<float> step;
};

void multiply_output_major(const WholeRows& x, const Linear& linear, Tensor& y) {
  const int64_t inputs = linear.inputs(), outputs = linear.outputs();
  const int64_t share = divide_up(outputs, thread_count());
  const auto* weight = linear.weight.data<int8_t>();
  float* to = y.data<float>();
  std::fill_n(to, y.count(), 0.0f);
  parallel_for(divide_up(outputs, share), [&](int64_t i) {
    const int64_t begin = i * share, end = std::min(outputs, begin + share);
    multiply_whole_output_major(weight + begin * inputs, inputs, end - begin, x.whole.data(),
                                x.width, x.count, to + begin, outputs);
  });
}

// The shares [begin, end) of the inputs and a range of the outputs.
void multiply_shares(const WholeRows& x, const Linear& linear, int64_t begin, int64_t end,
                     int64_t column, int64_t columns, float* y) {
  thread_local std::vector<int32_t> sums;
  sums.resize(static_cast<size_t>(x.count * columns));
  const int64_t inputs = linear.inputs(), outputs = linear.outputs();
  const int64_t share = whole_share(inputs, kInputShares);
  for (int64_t k = begin * share; k < std::min(inputs, end * share); k += share)
    multiply_whole_input_major(linear.weight.data<int8_t>() + k * outputs + column, outputs,
                               std::min(share, inputs - k), columns, x.whole.data() + k, x.width,
                               x.count, sums.data(), /*add=*/k > begin * share, y + column,
                               outputs);
}

// As with other weights (matmul.cc): for very few rows every core reads whole rows of the weight in
// order, and for more a range of their columns.
void multiply_input_major(const WholeRows& x, const Linear& linear, Tensor& y) {
  const int64_t outputs = linear.outputs(), size = x.count * outputs;
  const int64_t shares = divide_up(linear.inputs(), whole_share(linear.inputs(), kInputShares));
  float* to = y.data<float>();
  if (x.count > kFewRows) {
    const int64_t width = fair_columns(outputs, thread_count());
    return parallel_for(divide_up(outputs, width), [&](int64_t i) {
      multiply_shares(x, linear, 0, shares, i * width, std::min(width, outputs - i * width), to);
    });
  }
  Tensor partial({shares, size});
  float* const each = partial.data<float>();
  parallel_for(shares, [&](int64_t i) {
    multiply_shares(x, linear, i, i + 1, 0, outputs, each + i * size);
  });
  std::copy_n(each, size, to);
  for (int64_t i = 1; i < shares; ++i) add_scaled(each + i * size, 1, size, to);
}

}  // namespace

void add_scaled_product(const Tensor& x, const Linear& linear, Tensor& y) {
  const int64_t rows = x.size(0), inputs = linear.inputs(), outputs = linear.outputs();
  const auto* factors = linear.weight.factors().data<float>();
  // Factors of the outputs wait for the sums to be made; those of the inputs (in a backward) are
  // taken to x.
  const bool of_inputs = linear.weight.has_row_factors() == linear.input_major;
  Tensor scaled = of_inputs ? x.clone() : x;
  for (int64_t r = 0; of_inputs && r < rows; ++r)
    multiply(factors, inputs, scaled.data<float>() + r * inputs);
  const WholeRows whole(scaled);
  Tensor sums({rows, outputs});
  if (linear.input_major)
    multiply_input_major(whole, linear, sums);
  else
    multiply_output_major(whole, linear, sums);
  for (int64_t r = 0; r < rows; ++r) {
    float* const sum = sums.data<float>() + r * outputs;
    float* const to = y.data<float>() + r * outputs;
    const float step = whole.step[static_cast<size_t>(r)];
    if (of_inputs) {
      add_scaled(sum, step, outputs, to);
    } else {
      scale_row(step, outputs, sum);
      add_product(sum, factors, outputs, to);
    }
  }
}

}  // namespace dofla::cpu
