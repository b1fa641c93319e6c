#include "dofla/evaluate/compare.h"

#include <cmath>

#include <gtest/gtest.h>

#include "dofla/core/random.h"
#include "dofla/distill/feature_map.h"
#include "dofla/linear/linear_model.h"
#include "dofla/ops/divergence.h"
#include "dofla/plan/allocate.h"
#include "tests/support/expect_error.h"
#include "tests/support/fixtures.h"

namespace dofla {
namespace {

NextSequence once(const Tensor& ids) {
  TokenIds sequence(ids.data<int64_t>(), ids.data<int64_t>() + ids.size(1));
  return [sequence, given = false](TokenIds& out) mutable {
    if (given) return false;
    given = true;
    out = sequence;
    return true;
  };
}

TEST(Divergence, EqualsTheDefinitionInDouble) {
  const int64_t rows = 5, count = 301;
  Random random(2);
  Tensor p({rows, count}), q({rows, count}), targets({rows}, DType::kI64);
  for (int64_t i = 0; i < p.count(); ++i) {
    p.data<float>()[i] = static_cast<float>(6 * random.normal());
    q.data<float>()[i] = static_cast<float>(6 * random.normal());
  }
  for (int64_t r = 0; r < rows; ++r) targets.data<int64_t>()[r] = (r * 77) % count;
  double kl = 0, loss = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const float *a = p.data<float>() + r * count, *b = q.data<float>() + r * count;
    double sum_a = 0, sum_b = 0;
    for (int64_t i = 0; i < count; ++i)
      sum_a += std::exp(double{a[i]}), sum_b += std::exp(double{b[i]});
    for (int64_t i = 0; i < count; ++i)
      kl += std::exp(double{a[i]}) / sum_a *
            ((double{a[i]} - std::log(sum_a)) - (double{b[i]} - std::log(sum_b)));
    loss += std::log(sum_b) - b[targets.data<int64_t>()[r]];
  }
  const Divergence found = divergence(p, q, targets);
  const double tolerance = 8 * 0x1p-23 * 24 * rows;  // logits reach 24; a few roundings a row
  EXPECT_NEAR(found.kl, kl, tolerance);
  EXPECT_NEAR(found.student_loss, loss, tolerance);
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

TEST(Compare, AModelAgreesWithItself) {
  const Checkpoint checkpoint(test::fixtures() / "gpt2");
  const Safetensors expected(checkpoint.folder() / "expected.safetensors");
  const Transformer model(checkpoint);
  const Comparison same = compare(model, model, once(expected.tensor("input_ids")));
  EXPECT_EQ(same.tokens, expected.tensor("input_ids").size(1) - 1);
  EXPECT_EQ(same.top1_agreement, 1);
  EXPECT_NEAR(same.kl, 0, 1e-5);
  EXPECT_EQ(same.teacher_loss, same.student_loss);
  for (double error : same.attention_error) EXPECT_EQ(error, 0);
}

TEST(Compare, AStudentIsApartFromItsTeacher) {
  const Checkpoint checkpoint(test::fixtures() / "gpt2");
  const Tensor ids = Safetensors(checkpoint.folder() / "expected.safetensors").tensor("input_ids");
  const Transformer teacher(checkpoint);
  const auto plan = fixed_plan(identity_of(teacher.config()), 4);
  const Comparison apart =
      compare(teacher, make_linear_model(checkpoint, init_features(plan, {})), once(ids));
  EXPECT_GT(apart.kl, 0);
  EXPECT_NE(apart.student_loss, apart.teacher_loss);
  EXPECT_EQ(static_cast<int64_t>(apart.attention_error.size()), teacher.config().layers);
  for (double error : apart.attention_error) EXPECT_GT(error, 0);
}

TEST(Compare, RefusesModelsOfDifferentShape) {
  const Checkpoint a(test::fixtures() / "gpt2"), b(test::fixtures() / "llama");
  const Transformer first(a), second(b);
  const Tensor ids = Tensor::zeros({1, 4}, DType::kI64);
  test::expect_error([&] { compare(first, second, once(ids)); }, {"cannot compare"});
}

}  // namespace
}  // namespace dofla
