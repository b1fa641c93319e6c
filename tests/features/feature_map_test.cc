#include "dofla/features/feature_map.h"

#include <cmath>

#include <gtest/gtest.h>

namespace dofla {
namespace {

double row_product(const Tensor& z, int64_t a, int64_t b) {
  double sum = 0;
  for (int64_t c = 0; c < z.size(1); ++c)
    sum += double{z.data<float>()[a * z.size(1) + c]} * z.data<float>()[b * z.size(1) + c];
  return sum;
}

TEST(FeatureMap, OrthogonalDirectionsAreOrthogonalWithinABlock) {
  const int64_t size = 16;
  const Tensor z = orthogonal_directions(40, size, 3, 0);
  for (int64_t a = 0; a < 40; ++a)
    for (int64_t b = a / size * size; b < a; ++b) {
      const double bound = 8 * 0x1p-24 * std::sqrt(row_product(z, a, a) * row_product(z, b, b));
      EXPECT_NEAR(row_product(z, a, b), 0, bound) << a << " " << b;
    }
}

TEST(FeatureMap, OrthogonalDirectionsHaveGaussianNorms) {
  const int64_t size = 16, count = 4000;
  const Tensor z = orthogonal_directions(count, size, 1, 0);
  double mean = 0;
  for (int64_t m = 0; m < count; ++m) mean += row_product(z, m, m) / count;
  // |z|² is chi-squared: mean D, variance 2D. Five standard errors.
  EXPECT_NEAR(mean, size, 5 * std::sqrt(2.0 * size / count));
}

TEST(FeatureMap, NormalQuantileInvertsTheDistribution) {
  EXPECT_NEAR(normal_quantile(0.5), 0, 1e-14);
  EXPECT_NEAR(normal_quantile(0.975), 1.959963984540054, 1e-12);  // published tables
  EXPECT_NEAR(normal_quantile(0.001), -3.090232306167814, 1e-12);
  EXPECT_THROW(normal_quantile(0), std::invalid_argument);
}

TEST(FeatureMap, DijiangRowsAreScaledCosines) {
  const int64_t size = 8;
  const Tensor z = dijiang_directions(20, size);
  for (int64_t a = 0; a < 20; ++a)
    for (int64_t b = a / size * size; b < a; ++b)
      EXPECT_NEAR(row_product(z, a, b), 0, 64 * 0x1p-24) << a << " " << b;
  // The low-discrepancy set is ½, ¼, ¾, ⅛, …
  const double points[] = {0.5, 0.25, 0.75, 0.125};
  for (int64_t m = 0; m < 4; ++m)
    EXPECT_NEAR(std::sqrt(row_product(z, m, m)),
                std::pow(8.0, 0.25) * std::abs(normal_quantile(points[m])), 1e-6);
}

}  // namespace
}  // namespace dofla
