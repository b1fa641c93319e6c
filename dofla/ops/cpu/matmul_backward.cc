#include <algorithm>
#include <cmath>
#include <span>
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

// Replaces a row of logits by grad_loss · (softmax − the teacher's softmax); returns the
// divergence. The teacher's row is lost.
float imitation_row(float grad_loss, int64_t count, float* teacher, float* row) {
  const float teacher_sum = log_sum_exp(teacher, count), sum = log_sum_exp(row, count);
  std::vector<float> difference(teacher, teacher + count);
  add_scaled(row, -1, count, difference.data());
  exp_and_sum(teacher_sum, count, teacher);
  exp_and_sum(sum, count, row);
  add_scaled(teacher, -1, count, row);
  scale_row(grad_loss, count, row);
  // Rounding can take it a little below 0, where it cannot be.
  return std::max(dot(teacher, difference.data(), count) - teacher_sum + sum, 0.0f);
}

Tensor picked_rows(const Tensor& x, std::span<const int64_t> rows) {
  const int64_t width = x.size(1);
  Tensor picked({static_cast<int64_t>(rows.size()), width});
  float* to = picked.data<float>();
  for (const int64_t row : rows) to = std::copy_n(x.data<float>() + row * width, width, to);
  return picked;
}

// Logits of the rows whose grad_loss is not 0, some at a time. differentiate(rows, logits) replaces
// them by their gradients and sets the losses; those of x and of the head follow here.
template <class Differentiate>
void head_backward(const Tensor& x, const Linear& head, const Tensor& grad_loss,
                   CrossEntropyGradients& gradients, Linear* head_gradient,
                   const Differentiate& differentiate) {
  const int64_t width = x.size(1), vocabulary = head.outputs();
  std::vector<int64_t> wanted;
  for (int64_t r = 0; r < x.size(0); ++r)
    if (grad_loss.data<float>()[r] != 0) wanted.push_back(r);
  const auto most = static_cast<size_t>(std::max(kLogits / vocabulary, int64_t{16}));
  for (size_t begin = 0; begin < wanted.size(); begin += most) {
    const size_t count = std::min(most, wanted.size() - begin);
    const std::span<const int64_t> some(wanted.data() + begin, count);
    const Tensor rows = picked_rows(x, some);
    Tensor logits({rows.size(0), vocabulary}), grad_rows(rows.shape());
    cpu::matmul(rows, head, logits);
    differentiate(some, logits);
    cpu::matmul(logits, transposed(head), grad_rows);
    for (size_t i = 0; i < count; ++i)
      std::copy_n(grad_rows.data<float>() + static_cast<int64_t>(i) * width, width,
                  gradients.x.data<float>() + some[i] * width);
    if (head_gradient != nullptr) cpu::add_weight_gradient(rows, logits, *head_gradient);
  }
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
  const int64_t vocabulary = head.outputs();
  const int64_t* target = targets.data<int64_t>();
  const float* factor = grad_loss.data<float>();
  float* loss = gradients.loss.data<float>();
  head_backward(x, head, grad_loss, gradients, head_gradient,
                [&](std::span<const int64_t> rows, Tensor& logits) {
                  float* all = logits.data<float>();
                  parallel_rows(logits.size(0), [&](int64_t i) {
                    const int64_t row = rows[static_cast<size_t>(i)];
                    loss[row] =
                        softmax_row(target[row], factor[row], vocabulary, all + i * vocabulary);
                  });
                });
}

void imitation_backward(const Tensor& x, const Linear& head, const Tensor& teacher_x,
                        const Linear& teacher_head, const Tensor& grad_loss,
                        CrossEntropyGradients& gradients, Linear* head_gradient) {
  const int64_t vocabulary = head.outputs();
  const float* factor = grad_loss.data<float>();
  float* loss = gradients.loss.data<float>();
  head_backward(x, head, grad_loss, gradients, head_gradient,
                [&](std::span<const int64_t> rows, Tensor& logits) {
                  Tensor teacher(logits.shape());
                  cpu::matmul(picked_rows(teacher_x, rows), teacher_head, teacher);
                  float *all = logits.data<float>(), *said = teacher.data<float>();
                  parallel_rows(logits.size(0), [&](int64_t i) {
                    const int64_t row = rows[static_cast<size_t>(i)], at = i * vocabulary;
                    loss[row] = imitation_row(factor[row], vocabulary, said + at, all + at);
                  });
                });
}

}  // namespace dofla::cpu
