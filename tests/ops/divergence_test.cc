#include "dofla/ops/divergence.h"

#include <cmath>

#include <gtest/gtest.h>

#include "dofla/core/random.h"

namespace dofla {
namespace {

TEST(Divergence, EqualsTheDefinitionInDouble) {
  const int64_t rows = 5, count = 301;
  Random random(2);
  Tensor p({rows, count}), q({rows, count}), targets({rows}, DType::kI64);
  for (int64_t i = 0; i < p.count(); ++i) {
    p.data<float>()[i] = static_cast<float>(6 * random.normal());
    q.data<float>()[i] = static_cast<float>(6 * random.normal());
  }
  for (int64_t r = 0; r < rows; ++r) targets.data<int64_t>()[r] = (r * 77) % count;
  double kl = 0, teacher_loss = 0, student_loss = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const float *a = p.data<float>() + r * count, *b = q.data<float>() + r * count;
    double sum_a = 0, sum_b = 0;
    for (int64_t i = 0; i < count; ++i)
      sum_a += std::exp(double{a[i]}), sum_b += std::exp(double{b[i]});
    for (int64_t i = 0; i < count; ++i)
      kl += std::exp(double{a[i]}) / sum_a *
            ((double{a[i]} - std::log(sum_a)) - (double{b[i]} - std::log(sum_b)));
    const int64_t target = targets.data<int64_t>()[r];
    teacher_loss += std::log(sum_a) - a[target];
    student_loss += std::log(sum_b) - b[target];
  }
  const Divergence found = divergence(p, q, targets);
  const double tolerance = 8 * 0x1p-23 * 24 * rows;  // logits reach 24; a few roundings a row
  EXPECT_NEAR(found.kl, kl, tolerance);
  EXPECT_NEAR(found.teacher_loss, teacher_loss, tolerance);
  EXPECT_NEAR(found.student_loss, student_loss, tolerance);
  EXPECT_EQ(divergence(p, p, targets).agree, rows);
  EXPECT_NEAR(divergence(p, p, targets).kl, 0, tolerance);
}

TEST(OutputError, IsThatOfEveryElement) {
  Tensor teacher = Tensor::zeros({2, 5000}), student = Tensor::zeros({2, 5000});
  teacher.data<float>()[0] = 3, teacher.data<float>()[9999] = -4;
  student.data<float>()[0] = 1, student.data<float>()[4096] = 5, student.data<float>()[9999] = -5;
  const OutputError found = output_error(teacher, student);
  EXPECT_EQ(found.signal, 9 + 16);
  EXPECT_EQ(found.error, 4 + 25 + 1);
  EXPECT_THROW(output_error(teacher, student.reshape({5000, 2})), std::invalid_argument);
  EXPECT_THROW(output_error(teacher, student.to(DType::kF64)), std::invalid_argument);
}

}  // namespace
}  // namespace dofla
