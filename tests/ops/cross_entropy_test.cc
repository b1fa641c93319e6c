#include "dofla/ops/cross_entropy.h"

#include <cmath>

#include <gtest/gtest.h>

#include "tests/reference/attention_case.h"
#include "tests/reference/compare.h"
#include "tests/reference/slopes.h"
#include "tests/support/random_values.h"
#include "tests/support/tolerance.h"

namespace dofla {
namespace {

using reference::to_doubles;
using reference::to_tensor;

struct CrossEntropyCase {
  CrossEntropyCase(int64_t row_count, int64_t inputs, int64_t outputs)
      : rows(row_count), width(inputs), vocabulary(outputs), targets({rows}, DType::kI64) {
    Random random(6);
    x = test::normal_values(rows * width, random);
    weight = test::normal_values(vocabulary * width, random);
    factor = test::normal_values(rows, random);
    for (int64_t r = 0; r < rows; ++r) {
      targets.data<int64_t>()[r] =
          static_cast<int64_t>(random.below(static_cast<uint64_t>(vocabulary)));
      if (r % 3 == 1) factor[static_cast<size_t>(r)] = 0;
    }
  }

  double logit(int64_t row, int64_t id) const {
    double sum = 0;
    for (int64_t k = 0; k < width; ++k)
      sum += x[static_cast<size_t>(row * width + k)] * weight[static_cast<size_t>(id * width + k)];
    return sum;
  }

  double row_loss(int64_t row) const {
    double total = 0;
    for (int64_t id = 0; id < vocabulary; ++id) total += std::exp(logit(row, id));
    return std::log(total) - logit(row, std::as_const(targets).data<int64_t>()[row]);
  }

  double loss() const {
    double sum = 0;
    for (int64_t r = 0; r < rows; ++r)
      if (factor[static_cast<size_t>(r)] != 0) sum += factor[static_cast<size_t>(r)] * row_loss(r);
    return sum;
  }

  CrossEntropyGradients gradients(Linear* head_gradient) const {
    return cross_entropy_backward(to_tensor(x, {rows, width}), head(), targets,
                                  to_tensor(factor, {rows}), head_gradient);
  }
  Linear head() const {
    return {.weight = to_tensor(weight, {vocabulary, width}), .input_major = false, .bias = {}};
  }

  // A probability's relative error is the error of its logit and that of the sum; a gradient sums
  // `terms` of them, each with a factor of the size of `other`.
  double tolerance(int64_t terms, double other) const {
    const double logits =
        test::product_tolerance(width, reference::largest(x), reference::largest(weight));
    const double relative = 2 * logits + test::float32_tolerance(vocabulary, 1, 1);
    const double size = other * reference::largest(factor);
    return size * (relative + test::float32_tolerance(terms, 1, 1)) + reference::slope_error(size);
  }

  int64_t rows, width, vocabulary;
  std::vector<double> x, weight, factor;
  Tensor targets;
};

TEST(CrossEntropyBackward, HasTheSlopesOfTheLoss) {
  for (const int64_t rows : {1, 63, 64, 65}) {
    CrossEntropyCase c(rows, 5, 41);
    Linear head_gradient = {Tensor::zeros({41, 5}), false, {}};
    const CrossEntropyGradients found = c.gradients(&head_gradient);
    const auto loss = [&] { return c.loss(); };
    for (int64_t r = 0; r < rows; ++r)
      EXPECT_NEAR(found.loss.data<float>()[r], r % 3 == 1 ? 0 : c.row_loss(r), c.tolerance(1, 1));
    reference::expect_near(found.x, reference::slopes(c.x, loss),
                           c.tolerance(41, reference::largest(c.weight)), "x");
    // Rows add up: the errors of √rows of them, either way.
    const double across = std::sqrt(static_cast<double>(rows)) * reference::largest(c.x);
    reference::expect_near(head_gradient.weight, reference::slopes(c.weight, loss),
                           c.tolerance(rows, across), "head");
  }
}

// A student beside a teacher of another width.
struct ImitationCase : CrossEntropyCase {
  ImitationCase(int64_t row_count, int64_t outputs) : CrossEntropyCase(row_count, 5, outputs) {
    Random random(7);
    teacher_x = test::normal_values(rows * kWidth, random);
    teacher_weight = test::normal_values(vocabulary * kWidth, random);
  }

  // KL(teacher ‖ student)
  double row_loss(int64_t row) const {
    std::vector<double> teacher, student;
    double teacher_sum = 0, student_sum = 0, loss = 0;
    for (int64_t id = 0; id < vocabulary; ++id) {
      double& sum = teacher.emplace_back(0);
      for (int64_t k = 0; k < kWidth; ++k)
        sum += teacher_x[static_cast<size_t>(row * kWidth + k)] *
               teacher_weight[static_cast<size_t>(id * kWidth + k)];
      student.push_back(logit(row, id));
      teacher_sum += std::exp(sum);
      student_sum += std::exp(student.back());
    }
    for (size_t id = 0; id < teacher.size(); ++id)
      loss += std::exp(teacher[id]) / teacher_sum *
              (teacher[id] - std::log(teacher_sum) - student[id] + std::log(student_sum));
    return loss;
  }
  double loss() const {
    double sum = 0;
    for (int64_t r = 0; r < rows; ++r) sum += factor[static_cast<size_t>(r)] * row_loss(r);
    return sum;
  }
  Linear teacher_head() const {
    return {.weight = to_tensor(teacher_weight, {vocabulary, kWidth}),
            .input_major = false,
            .bias = {}};
  }
  CrossEntropyGradients gradients(Linear* head_gradient) const {
    return imitation_backward(to_tensor(x, {rows, width}), head(),
                              to_tensor(teacher_x, {rows, kWidth}), teacher_head(),
                              to_tensor(factor, {rows}), head_gradient);
  }
  // Both have logits that are off.
  double tolerance(int64_t terms, double other) const {
    return CrossEntropyCase::tolerance(terms, other) +
           2 * other * reference::largest(factor) *
               test::product_tolerance(kWidth, reference::largest(teacher_x),
                                       reference::largest(teacher_weight));
  }

  static constexpr int64_t kWidth = 7;
  std::vector<double> teacher_x, teacher_weight;
};

TEST(ImitationBackward, HasTheSlopesOfTheDivergence) {
  for (const int64_t rows : {1, 65}) {
    ImitationCase c(rows, 41);
    Linear head_gradient = {Tensor::zeros({41, 5}), false, {}};
    const CrossEntropyGradients found = c.gradients(&head_gradient);
    const auto loss = [&] { return c.loss(); };
    double most = 0;
    for (int64_t r = 0; r < rows; ++r) most = std::max(most, c.row_loss(r));
    for (int64_t r = 0; r < rows; ++r)
      EXPECT_NEAR(found.loss.data<float>()[r], r % 3 == 1 ? 0 : c.row_loss(r),
                  c.tolerance(41, most));
    reference::expect_near(found.x, reference::slopes(c.x, loss),
                           c.tolerance(41, reference::largest(c.weight)), "x");
    const double across = std::sqrt(static_cast<double>(rows)) * reference::largest(c.x);
    reference::expect_near(head_gradient.weight, reference::slopes(c.weight, loss),
                           c.tolerance(rows, across), "head");
  }
}

TEST(ImitationBackward, RefusesAnotherVocabulary) {
  const ImitationCase c(4, 7), other(4, 8);
  EXPECT_THROW(
      imitation_backward(to_tensor(c.x, {4, 5}), c.head(), to_tensor(other.teacher_x, {4, 7}),
                         other.teacher_head(), Tensor::zeros({4})),
      std::invalid_argument);
}

// So many logits a row that the rows come in two lots.
TEST(CrossEntropyBackward, ALargeVocabularyIsTakenSomeRowsAtATime) {
  const int64_t vocabulary = int64_t{1} << 19, rows = 50;
  CrossEntropyCase c(rows, 2, vocabulary);
  Linear head_gradient = {Tensor::zeros({vocabulary, 2}), false, {}};
  const CrossEntropyGradients found = c.gradients(&head_gradient);
  double size = 0;
  for (const int64_t row : {0, 47, 48}) {
    EXPECT_NEAR(found.loss.data<float>()[row], c.row_loss(row), c.tolerance(1, 1));
    size += std::abs(c.factor[static_cast<size_t>(row)]);
  }
  EXPECT_GT(size, 0);
  // Softmax minus a unit vector sums to 0 over the vocabulary, for every row.
  double sum = 0, most = 0;
  for (int64_t i = 0; i < vocabulary; ++i) {
    sum += head_gradient.weight.data<float>()[2 * i];
    most += std::abs(head_gradient.weight.data<float>()[2 * i]);
  }
  EXPECT_NEAR(sum, 0, c.tolerance(rows, 1) * most);
}

TEST(CrossEntropyBackward, RefusesShapesThatDoNotFit) {
  const CrossEntropyCase c(4, 3, 7);
  Linear wrong = {Tensor::zeros({7, 4}), false, {}};
  EXPECT_THROW(c.gradients(&wrong), std::invalid_argument);
  wrong = {Tensor::zeros({7, 3}, DType::kF64), false, {}};
  EXPECT_THROW(c.gradients(&wrong), std::invalid_argument);
  EXPECT_THROW(
      cross_entropy_backward(Tensor::zeros({4, 3}), c.head(), c.targets, Tensor::zeros({3})),
      std::invalid_argument);
}

}  // namespace
}  // namespace dofla
