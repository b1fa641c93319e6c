#include "dofla/ops/feature_step.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "dofla/core/random.h"
#include "tests/reference/attention_case.h"

namespace dofla {
namespace {

using reference::to_doubles;

Tensor normals(Shape shape, double scale, Random& random) {
  Tensor x(std::move(shape));
  for (int64_t i = 0; i < x.count(); ++i)
    x.data<float>()[i] = static_cast<float>(scale * random.normal());
  return x;
}

struct Case {
  Features features;
  Tensor loss;
  FeatureGradients grad;
};

// Two heads whose gradients differ by twenty orders of magnitude.
Case two_heads() {
  Random random(3);
  Case c;
  c.features.counts = {2, 3};
  c.features.z = normals({5, 4}, 1, random);
  c.features.log_alpha = normals({5}, 1, random);
  c.loss = Tensor::zeros({2}, DType::kF64);
  c.grad.z = normals({5, 4}, 1, random);
  c.grad.log_alpha = normals({5}, 1, random);
  for (int64_t i = 0; i < 2 * 4; ++i) c.grad.z.data<float>()[i] *= 1e-20f;
  for (int64_t i = 0; i < 2; ++i) c.grad.log_alpha.data<float>()[i] *= 1e-20f;
  return c;
}

double head_norm(const Case& c, int64_t begin, int64_t end) {
  double sum = 0;
  for (const double x : to_doubles(c.grad.z.slice(begin, end))) sum += x * x;
  for (const double x : to_doubles(c.grad.log_alpha.slice(begin, end))) sum += x * x;
  return std::sqrt(sum);
}

TEST(FeatureStep, ScalesEveryHeadToNormOneBeforeAdam) {
  Case c = two_heads();
  FeatureMoments moments = new_feature_moments(c.features);
  const std::vector<double> before = to_doubles(c.features.z);
  const std::vector<double> norms =
      to_doubles(feature_step(c.loss, c.grad, {0.1, 0.2}, moments, c.features));
  const double expected[] = {head_norm(c, 0, 2), head_norm(c, 2, 5)};
  const std::vector<double> gradient = to_doubles(c.grad.z), after = to_doubles(c.features.z);
  for (size_t i = 0; i < after.size(); ++i) {
    const size_t head = i < 2 * 4 ? 0 : 1;
    EXPECT_DOUBLE_EQ(norms[head], expected[head]);
    // The first step of Adam is learning rate · g / (|g| + ε), g of norm 1 over the head.
    const double g = gradient[i] / expected[head];
    const double moved = -0.1 * g / (std::abs(g) + 1e-8);
    // 1 − β₂ = 0.001 is known to eps / 0.001, and enters under a root.
    const double eps = std::numeric_limits<float>::epsilon();
    EXPECT_NEAR(after[i], before[i] + moved, eps * std::abs(before[i]) + 0.1 * eps / 0.001 / 2);
  }
  EXPECT_EQ(moments.z.steps, 1);
}

TEST(FeatureStep, ChangesNothingWhereAHeadIsNotFinite) {
  for (const bool in_loss : {true, false}) {
    Case c = two_heads();
    const double bad = std::numeric_limits<double>::quiet_NaN();
    if (in_loss)
      c.loss.data<double>()[1] = bad;
    else
      c.grad.log_alpha.data<float>()[4] = static_cast<float>(bad);
    FeatureMoments moments = new_feature_moments(c.features);
    const std::vector<double> z = to_doubles(c.features.z);
    const std::vector<double> norms =
        to_doubles(feature_step(c.loss, c.grad, {0.1, 0.2}, moments, c.features));
    EXPECT_FALSE(std::isnan(norms[0]));
    EXPECT_TRUE(std::isnan(norms[1]));
    EXPECT_EQ(to_doubles(c.features.z), z);
    for (const double x : to_doubles(moments.z.mean)) EXPECT_EQ(x, 0);
  }
}

// All that belongs to a key head is one gradient: u of its query heads, z, log α and η.
TEST(FeatureStep, AnUntiedHeadIsOneGradient) {
  Case c = two_heads();
  c.features = untie(c.features, 6);
  Random random(8);
  c.loss = Tensor::zeros({6}, DType::kF64);
  c.grad.u = normals({15, 4}, 1, random);
  c.grad.norm_weight = normals({2}, 1, random);
  const std::vector<double> of_u = to_doubles(c.grad.u), of_norm = to_doubles(c.grad.norm_weight);
  const std::vector<double> before = to_doubles(c.features.norm_weight);
  FeatureMoments moments = new_feature_moments(c.features);
  const std::vector<double> norms =
      to_doubles(feature_step(c.loss, c.grad, {0.1, 0.2, 0.3}, moments, c.features));
  for (size_t head = 0; head < 2; ++head) {
    const int64_t begin = head == 0 ? 0 : 2, end = head == 0 ? 2 : 5;
    double sum = std::pow(head_norm(c, begin, end), 2) + std::pow(of_norm[head], 2);
    for (int64_t i = 3 * begin * 4; i < 3 * end * 4; ++i)
      sum += std::pow(of_u[static_cast<size_t>(i)], 2);
    EXPECT_NEAR(norms[head], std::sqrt(sum), 1e-12 * norms[head]);
    // The first step of Adam is the learning rate, whatever the size of the gradient.
    EXPECT_NEAR(to_doubles(c.features.norm_weight)[head],
                before[head] - std::copysign(0.3, of_norm[head]), 1e-4);
  }
  EXPECT_NEAR(c.features.u.data<float>()[0] - c.features.u.data<float>()[8],
              -std::copysign(0.1, of_u[0]) + std::copysign(0.1, of_u[8]), 1e-4)
      << "of two query heads of one group";
  c.loss.data<double>()[4] = std::numeric_limits<double>::infinity();  // of the second key head
  const std::vector<double> u = to_doubles(c.features.u);
  const std::vector<double> skipped =
      to_doubles(feature_step(c.loss, c.grad, {0.1, 0.2, 0.3}, moments, c.features));
  EXPECT_FALSE(std::isnan(skipped[0]));
  EXPECT_TRUE(std::isnan(skipped[1]));
  EXPECT_EQ(to_doubles(c.features.u), u);
}

TEST(FeatureStep, AHeadWithoutAGradientStaysWhereItIs) {
  Case c = two_heads();
  c.grad.z = Tensor::zeros({5, 4});
  c.grad.log_alpha = Tensor::zeros({5});
  FeatureMoments moments = new_feature_moments(c.features);
  const std::vector<double> z = to_doubles(c.features.z);
  feature_step(c.loss, c.grad, {0.1, 0.2}, moments, c.features);
  EXPECT_EQ(to_doubles(c.features.z), z);
}

}  // namespace
}  // namespace dofla
