#include "dofla/ops/divergence.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "dofla/core/random.h"

namespace dofla {
namespace {

Tensor normal_logits(int64_t rows, int64_t count, uint64_t seed) {
  Random random(seed);
  Tensor logits({rows, count});
  for (int64_t i = 0; i < logits.count(); ++i)
    logits.data<float>()[i] = static_cast<float>(6 * random.normal());
  return logits;
}

Tensor some_targets(int64_t rows, int64_t count) {
  Tensor targets({rows}, DType::kI64);
  for (int64_t r = 0; r < rows; ++r) targets.data<int64_t>()[r] = (r * 77) % count;
  return targets;
}

std::vector<double> probabilities(const float* logits, int64_t count) {
  std::vector<double> p(logits, logits + count);
  double sum = 0;
  for (double& x : p) sum += x = std::exp(x);
  for (double& x : p) x /= sum;
  return p;
}

std::vector<size_t> five_likeliest(const std::vector<double>& p) {
  std::vector<size_t> order(p.size());
  for (size_t i = 0; i < p.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return p[a] > p[b]; });
  order.resize(std::min<size_t>(5, order.size()));
  return order;
}

// Logits reach 24; a few roundings a row.
constexpr double kTolerance = 8 * 0x1p-23 * 24;

TEST(TokenStatistics, AreTheirDefinitionsInDouble) {
  const int64_t rows = 40, count = 301;
  const Tensor teacher = normal_logits(rows, count, 2);
  Tensor student = teacher.clone();  // near enough for likeliest tokens to be shared
  const Tensor noise = normal_logits(rows, count, 3);
  for (int64_t i = 0; i < student.count(); ++i)
    student.data<float>()[i] += 0.3f * noise.data<float>()[i];
  const Tensor targets = some_targets(rows, count);
  const auto found = token_statistics(teacher, student, targets);
  ASSERT_EQ(std::ssize(found), rows);
  int64_t same = 0, shared = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const auto p = probabilities(teacher.data<float>() + r * count, count);
    const auto q = probabilities(student.data<float>() + r * count, count);
    double kl = 0, p_entropy = 0, q_entropy = 0;
    for (size_t i = 0; i < p.size(); ++i) {
      kl += p[i] * std::log(p[i] / q[i]);
      p_entropy -= p[i] * std::log(p[i]);
      q_entropy -= q[i] * std::log(q[i]);
    }
    const auto p_top = five_likeliest(p), q_top = five_likeliest(q);
    int64_t both = 0;
    for (const size_t i : p_top) both += std::ranges::count(q_top, i);
    const TokenStatistics& row = found[static_cast<size_t>(r)];
    const auto target = static_cast<size_t>(targets.data<int64_t>()[r]);
    EXPECT_EQ(row.target, static_cast<int64_t>(target));
    EXPECT_NEAR(row.teacher_loss, -std::log(p[target]), kTolerance);
    EXPECT_NEAR(row.student_loss, -std::log(q[target]), kTolerance);
    EXPECT_NEAR(row.kl, kl, kTolerance);
    EXPECT_NEAR(row.teacher_entropy, p_entropy, kTolerance);
    EXPECT_NEAR(row.student_entropy, q_entropy, kTolerance);
    EXPECT_NEAR(row.teacher_top_p, p[p_top[0]], kTolerance);
    EXPECT_NEAR(row.student_top_p, q[q_top[0]], kTolerance);
    EXPECT_EQ(row.teacher_top, static_cast<int64_t>(p_top[0]));
    EXPECT_EQ(row.student_top, static_cast<int64_t>(q_top[0]));
    EXPECT_EQ(row.shared_top, both);
    same += row.same_top();
    shared += both;
  }
  EXPECT_GT(same, 0);
  EXPECT_LT(same, rows);
  EXPECT_LT(shared, 5 * rows);
}

TEST(TokenStatistics, OfAModelAndItselfAreEqual) {
  const Tensor logits = normal_logits(7, 64, 4);
  for (const TokenStatistics& row : token_statistics(logits, logits, some_targets(7, 64))) {
    EXPECT_EQ(row.kl, 0);
    EXPECT_EQ(row.student_loss, row.teacher_loss);
    EXPECT_EQ(row.student_entropy, row.teacher_entropy);
    EXPECT_EQ(row.student_top_p, row.teacher_top_p);
    EXPECT_EQ(row.shared_top, 5);
    EXPECT_TRUE(row.same_top());
  }
}

// One logit moved by δ: q_j = p_j e^δ / Z with Z = 1 − p_j + p_j e^δ, so that
// KL = log Z − p_j δ, and any other token loses log Z.
TEST(TokenStatistics, OfOneMovedLogitFollowTheClosedForm) {
  const int64_t count = 50;
  const Tensor teacher = normal_logits(1, count, 5);
  Tensor targets({1}, DType::kI64);
  targets.data<int64_t>()[0] = 3;
  for (const double delta : {-2.0, 0.5, 3.0}) {
    Tensor student = teacher.clone();
    student.data<float>()[7] += static_cast<float>(delta);
    const double p = probabilities(teacher.data<float>(), count)[7];
    const double z = 1 - p + p * std::exp(delta);
    const TokenStatistics row = token_statistics(teacher, student, targets).front();
    EXPECT_NEAR(row.kl, std::log(z) - p * delta, kTolerance) << delta;
    EXPECT_NEAR(row.student_loss - row.teacher_loss, std::log(z), kTolerance) << delta;
  }
}

TEST(TokenStatistics, OfEquallyLikelyTokensTheFirstCounts) {
  Tensor teacher = Tensor::zeros({1, 3}), student = Tensor::zeros({1, 3});
  student.data<float>()[2] = 1;
  const TokenStatistics row =
      token_statistics(teacher, student, Tensor::zeros({1}, DType::kI64)).front();
  EXPECT_EQ(row.teacher_top, 0);
  EXPECT_EQ(row.student_top, 2);
  EXPECT_EQ(row.shared_top, 3);  // a vocabulary of fewer than five
  EXPECT_NEAR(row.teacher_entropy, std::log(3.0), 1e-6);
}

TEST(TokenStatistics, RefuseWhatDoesNotFit) {
  const Tensor logits = Tensor::zeros({2, 4}), targets = Tensor::zeros({2}, DType::kI64);
  EXPECT_THROW(token_statistics(logits, Tensor::zeros({2, 5}), targets), std::invalid_argument);
  EXPECT_THROW(token_statistics(logits, logits, Tensor::zeros({3}, DType::kI64)),
               std::invalid_argument);
  Tensor outside = targets.clone();
  outside.data<int64_t>()[1] = 4;
  EXPECT_THROW(token_statistics(logits, logits, outside), std::invalid_argument);
}

TEST(HeadErrors, AreThoseOfEveryHead) {
  Tensor teacher = Tensor::zeros({2, 2, 3, 2}), student = Tensor::zeros({2, 2, 3, 2});
  teacher.data<float>()[0] = 3, student.data<float>()[0] = 1;     // head 1
  teacher.data<float>()[23] = -4, student.data<float>()[22] = 5;  // head 3
  const std::vector<OutputError> found = head_errors(teacher, student);
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].signal, 9);
  EXPECT_EQ(found[0].error, 4);
  EXPECT_EQ(found[1].signal, 0);
  EXPECT_EQ(found[1].error, 0);
  EXPECT_EQ(found[2].signal, 16);
  EXPECT_EQ(found[2].error, 16 + 25);
  EXPECT_THROW(head_errors(teacher, student.reshape({2, 3, 2, 2})), std::invalid_argument);
  EXPECT_THROW(head_errors(teacher, student.to(DType::kF64)), std::invalid_argument);
}

}  // namespace
}  // namespace dofla
