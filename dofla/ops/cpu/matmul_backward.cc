#include <algorithm>
#include <cmath>
#include <vector>

#include "dofla/core/parallel.h"
#include "dofla/ops/cpu/matmul.h"
#include "dofla/ops/cpu/sgemm.h"
#include "dofla/ops/cpu/vector_rows.h"

namespace dofla::cpu {
namespace {

// A task's part of a weight gradient, of a fixed size: the sums come out the same for any number
// of cores.
constexpr int64_t kTileRows = 128;
constexpr int64_t kTileColumns = 512;

// All logits that exist at a time: 64 MiB.
constexpr int64_t kLogits = int64_t{1} << 24;

int64_t ceil_divide(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// to += aᵀ b for a [R, rows] and b [R, columns].
void add_transposed_product(const Tensor& a, const Tensor& b, float* to) {
  const int64_t rows = a.size(1), columns = b.size(1);
  const int64_t across = ceil_divide(columns, kTileColumns);
  parallel_for(ceil_divide(rows, kTileRows) * across, [&](int64_t task) {
    const SingleThreaded alone;
    const int64_t i = task / across * kTileRows, j = task % across * kTileColumns;
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

// Replaces a row of logits by grad_loss · (softmax − the target's unit vector); returns the loss.
float softmax_row(int64_t target, float grad_loss, int64_t count, float* row) {
  const float target_logit = row[target], top = row_max(row, count);
  const float total = exp_and_sum(top, count, row);
  scale_row(grad_loss / total, count, row);
  row[target] -= grad_loss;
  return top + std::log(total) - target_logit;
}

}  // namespace

void add_weight_gradient(const Tensor& x, const Tensor& grad_y, Linear& gradient) {
  float* weight = gradient.weight.data<float>();
  if (gradient.input_major)
    add_transposed_product(x, grad_y, weight);
  else
    add_transposed_product(grad_y, x, weight);
  if (gradient.bias.defined()) add_rows(grad_y, gradient.bias.data<float>());
}

void cross_entropy_backward(const Tensor& x, const Linear& head, const Tensor& targets,
                            const Tensor& grad_loss, CrossEntropyGradients& gradients,
                            Linear* head_gradient) {
  const int64_t width = x.size(1), vocabulary = head.outputs();
  const int64_t* target = targets.data<int64_t>();
  const float* factor = grad_loss.data<float>();
  float* loss = gradients.loss.data<float>();
  std::vector<int64_t> wanted;
  for (int64_t r = 0; r < x.size(0); ++r)
    if (factor[r] != 0) wanted.push_back(r);
  const auto total = static_cast<int64_t>(wanted.size());
  const int64_t most = std::max(kLogits / vocabulary, int64_t{16});
  for (int64_t begin = 0; begin < total; begin += most) {
    const int64_t count = std::min(most, total - begin);
    const int64_t* row = wanted.data() + begin;
    Tensor rows({count, width}), logits({count, vocabulary}), grad_rows({count, width});
    for (int64_t i = 0; i < count; ++i)
      std::copy_n(x.data<float>() + row[i] * width, width, rows.data<float>() + i * width);
    cpu::matmul(rows, head, logits);
    float* all = logits.data<float>();
    parallel_rows(count, [&](int64_t i) {
      loss[row[i]] = softmax_row(target[row[i]], factor[row[i]], vocabulary, all + i * vocabulary);
    });
    cpu::matmul(logits, transposed(head), grad_rows);
    for (int64_t i = 0; i < count; ++i)
      std::copy_n(grad_rows.data<float>() + i * width, width,
                  gradients.x.data<float>() + row[i] * width);
    if (head_gradient != nullptr) cpu::add_weight_gradient(rows, logits, *head_gradient);
  }
}

}  // namespace dofla::cpu
