#include "dofla/ops/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "dofla/core/parallel.h"
#include "dofla/ops/cpu/vector_rows.h"
#include "dofla/ops/cpu/weight_panels.h"

namespace dofla::cpu {
namespace {

// All logits that exist at a time: 64 MiB.
constexpr int64_t kLogits = int64_t{1} << 24;

// Losses of the rows [first, first + count); panel_lse is a workspace.
void cross_entropy_of_rows(const Tensor& x, int64_t first, int64_t count, const Linear& head,
                           const int64_t* target, std::vector<float>& panel_lse, float* loss) {
  const int64_t outputs = head.outputs(), most = panel_outputs();
  const int64_t panels = (outputs + most - 1) / most;
  const float* bias = head.bias.defined() ? std::as_const(head.bias).data<float>() : nullptr;
  const PanelRows rows(x, {.row = first, .rows = count, .columns = x.size(1)});
  // Every panel leaves one log-sum-exp a row; they are merged in order, whichever thread computed
  // them.
  panel_lse.resize(static_cast<size_t>(count * panels));
  std::vector<float> target_logit(static_cast<size_t>(count));
  parallel_for(panels, [&](int64_t i) {
    thread_local PanelWorkspace workspace;
    thread_local std::vector<float> logits;
    const int64_t begin = i * most, end = std::min(outputs, begin + most);
    const int64_t width = end - begin;
    logits.resize(static_cast<size_t>(count * width));
    rows.multiply(head, begin, end, false, workspace, logits.data(), width);
    for (int64_t r = 0; r < count; ++r) {
      float* row = logits.data() + r * width;
      if (bias != nullptr)
        for (int64_t n = 0; n < width; ++n) row[n] += bias[begin + n];
      if (target[first + r] >= begin && target[first + r] < end)
        target_logit[static_cast<size_t>(r)] = row[target[first + r] - begin];
      panel_lse[static_cast<size_t>(r * panels + i)] = log_sum_exp(row, width);
    }
  });
  for (int64_t r = 0; r < count; ++r)
    loss[first + r] =
        log_sum_exp(panel_lse.data() + r * panels, panels) - target_logit[static_cast<size_t>(r)];
}

void cross_entropy(const Tensor& x, const Linear& head, const Tensor& targets, Tensor& loss) {
  const int64_t rows = x.size(0), at_once = panel_parts(x).rows;
  std::vector<float> panel_lse;
  for (int64_t first = 0; first < rows; first += at_once)
    cross_entropy_of_rows(x, first, std::min(at_once, rows - first), head, targets.data<int64_t>(),
                          panel_lse, loss.data<float>());
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
    kMatmul.matmul(rows, head, logits);
    differentiate(some, logits);
    kMatmul.matmul(logits, transposed(head), grad_rows);
    for (size_t i = 0; i < count; ++i)
      std::copy_n(grad_rows.data<float>() + static_cast<int64_t>(i) * width, width,
                  gradients.x.data<float>() + some[i] * width);
    if (head_gradient != nullptr) kMatmul.add_weight_gradient(rows, logits, *head_gradient);
  }
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
                  kMatmul.matmul(picked_rows(teacher_x, rows), teacher_head, teacher);
                  float *all = logits.data<float>(), *said = teacher.data<float>();
                  parallel_rows(logits.size(0), [&](int64_t i) {
                    const int64_t row = rows[static_cast<size_t>(i)], at = i * vocabulary;
                    loss[row] = imitation_row(factor[row], vocabulary, said + at, all + at);
                  });
                });
}

}  // namespace

const CrossEntropyBackend kCrossEntropy = {.cross_entropy = cross_entropy,
                                           .cross_entropy_backward = cross_entropy_backward,
                                           .imitation_backward = imitation_backward};

}  // namespace dofla::cpu
