#include "dofla/dof/estimate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include <gtest/gtest.h>

#include "dofla/checkpoint/safetensors.h"
#include "dofla/core/parallel.h"
#include "dofla/core/random.h"
#include "tests/reference/dof.h"
#include "tests/support/fixtures.h"
#include "tests/support/matrices.h"
#include "tests/support/tolerance.h"

namespace dofla {
namespace {

constexpr double kTolerance = SpectrumAccuracy{}.tolerance;

PsdMatrix gram_of(const Tensor& samples, GramScale scale = GramScale::kTrace) {
  return gram_matrix(kernel_samples(samples, scale));
}

TEST(Estimate, AgreesWithTheFixtures) {
  const Safetensors fixture(test::fixtures() / "features.safetensors");
  const Tensor samples = fixture.tensor("dof.x");
  const std::map<std::string, GramScale> scales = {{"raw", GramScale::kNone},
                                                   {"over_j", GramScale::kSamples},
                                                   {"trace", GramScale::kTrace},
                                                   {"max", GramScale::kMax}};
  int checked = 0;
  for (const std::string& name : fixture.names()) {
    if (!name.starts_with("dof.") || name == "dof.x") continue;
    const size_t dot = name.rfind('.');
    const double lambda = std::ldexp(1.0, -std::stoi(name.substr(dot + 1)));
    const PsdMatrix matrix = gram_of(samples, scales.at(name.substr(4, dot - 4)));
    const Tensor value = fixture.tensor(name);
    const double expected = value.data<double>()[0];
    const auto values = spectrum(matrix, {.smallest_lambda = lambda, .tolerance = 1e-6});
    EXPECT_NEAR(degrees_of_freedom(values, lambda), expected, 1e-6 * expected) << name;
    const auto dense = dense_spectrum(matrix);
    EXPECT_NEAR(degrees_of_freedom(dense, lambda), expected, 1e-6 * expected) << name;
    ++checked;
  }
  EXPECT_GE(checked, 4);
}

TEST(Estimate, IdentityIsExact) {
  for (const int64_t n : {1, 2, 63, 64, 65, 200}) {
    std::vector<double> identity(static_cast<size_t>(n * n), 0.0);
    for (int64_t i = 0; i < n; ++i) identity[static_cast<size_t>(i * n + i)] = 1;
    const auto values = spectrum(test::explicit_matrix(identity, n));
    for (const double lambda : {4.0, 0x1p-4, 0x1p-16}) {
      const double expected = static_cast<double>(n) / (1 + lambda);
      EXPECT_NEAR(degrees_of_freedom(values, lambda), expected,
                  static_cast<double>(n) * test::kFloat64Epsilon * expected);
    }
  }
}

TEST(Estimate, RankOneIsExact) {
  const int64_t n = 130;
  std::vector<double> ones(static_cast<size_t>(n * n), 1.0);  // one eigenvalue, n
  const auto values = spectrum(test::explicit_matrix(ones, n));
  ASSERT_EQ(values.size(), 1u);
  for (const double lambda : {4.0, 0x1p-4, 0x1p-16}) {
    const double expected = 130 / (130 + lambda);
    EXPECT_NEAR(degrees_of_freedom(values, lambda), expected, 130 * test::kFloat64Epsilon);
  }
}

TEST(Estimate, KnownSpectra) {
  for (const double ratio : {0.5, 0.9, 0.99, 0.999}) {  // low rank up to nearly flat
    std::vector<double> known(300);
    for (size_t i = 0; i < known.size(); ++i) known[i] = std::pow(ratio, static_cast<double>(i));
    const PsdMatrix matrix = test::with_spectrum(known, 7);
    const auto values = spectrum(matrix);
    EXPECT_TRUE(std::is_sorted(values.rbegin(), values.rend()));
    for (const double lambda : {4.0, 0x1p-4, 0x1p-8, 0x1p-16}) {
      const double expected = degrees_of_freedom(known, lambda);
      EXPECT_NEAR(degrees_of_freedom(values, lambda), expected,
                  kTolerance * expected + rounding_error(known, 300, lambda));
    }
  }
}

// The promise of SpectrumAccuracy, for heads of low and of full rank.
TEST(Estimate, KeepsItsToleranceForEveryLambda) {
  for (const double scale : {0.5, 1.5, 2.5, 4.0}) {
    const PsdMatrix matrix = gram_of(test::gaussian({256, 64}, scale, 9));
    const auto exact = dense_spectrum(matrix), kept = spectrum(matrix);
    for (int e = 0; e <= 16; ++e) {
      const double lambda = std::ldexp(1.0, -e), expected = degrees_of_freedom(exact, lambda);
      EXPECT_NEAR(degrees_of_freedom(kept, lambda), expected, kTolerance * expected)
          << "scale " << scale << ", λ = 2^-" << e;
    }
  }
}

TEST(Estimate, RightWhenScaledBy30) {
  const Tensor samples = test::gaussian({90, 16}, 30 * 1.2, 10);
  for (const GramScale scale : {GramScale::kTrace, GramScale::kMax}) {
    const reference::Matrix expected = reference::gram(samples, scale);
    const auto values = spectrum(gram_of(samples, scale));
    for (const double lambda : {1.0, 0x1p-4, 0x1p-8, 0x1p-12}) {
      const auto dof = static_cast<double>(reference::degrees_of_freedom(expected, lambda));
      EXPECT_NEAR(degrees_of_freedom(values, lambda), dof, kTolerance * dof);
    }
  }
}

TEST(Estimate, FallsInLambda) {
  const auto values = spectrum(gram_of(test::gaussian({128, 32}, 1, 11)));
  double before = std::numeric_limits<double>::infinity();
  for (int e = 16; e >= -8; --e) {
    const double dof = degrees_of_freedom(values, std::ldexp(1.0, -e));
    EXPECT_LT(dof, before);
    EXPECT_GT(dof, 0);
    before = dof;
  }
}

TEST(Estimate, DoesNotDependOnTheOrderOfSamples) {
  for (const double scale : {1.0, 3.0}) {
    const Tensor samples = test::gaussian({200, 64}, scale, 12);
    std::vector<int64_t> order(200);
    std::iota(order.begin(), order.end(), int64_t{0});
    Random random(1);
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
    Tensor shuffled({200, 64});
    for (size_t i = 0; i < order.size(); ++i)
      std::copy_n(samples.data<float>() + order[i] * 64, 64,
                  shuffled.data<float>() + static_cast<int64_t>(i) * 64);
    const auto one = spectrum(gram_of(samples)), other = spectrum(gram_of(shuffled));
    for (const double lambda : {0x1p-4, 0x1p-8, 0x1p-16}) {
      const double dof = degrees_of_freedom(one, lambda);
      EXPECT_NEAR(degrees_of_freedom(other, lambda), dof, 2 * kTolerance * dof);
    }
  }
}

TEST(Estimate, SameBitsForAnyNumberOfThreads) {
  const int before = thread_count();
  std::vector<std::vector<double>> first;
  for (const int threads : {1, 2, 5}) {
    omp_set_num_threads(threads);
    std::vector<std::vector<double>> found(6);
    parallel_for(6, [&](int64_t i) {
      const double scale = 0.5 + static_cast<double>(i) / 2;
      found[static_cast<size_t>(i)] =
          spectrum(gram_of(test::gaussian({300, 64}, scale, static_cast<uint64_t>(i))));
    });
    found.push_back(spectrum(gram_of(test::gaussian({300, 64}, 1, 6))));  // outside any loop
    EXPECT_EQ(thread_count(), threads);
    if (first.empty()) first = found;
    EXPECT_EQ(found, first) << threads << " threads";
  }
  omp_set_num_threads(before);
}

TEST(Estimate, KnowsWhenLambdaIsLostInRounding) {
  const std::vector<double> scaled = {1.0, 1e-3}, raw = {1e15, 1e3, 0.1};
  EXPECT_LT(rounding_error(scaled, 1000, 0x1p-16), 1e-5);
  EXPECT_GT(rounding_error(raw, 1000, 0x1p-8), 0.5);
}

TEST(Estimate, FromTracesAlone) {
  const std::vector<double> known = {0.6, 0.3, 0.1};
  const double lambda = 0x1p-8;
  double inverse = 0;
  for (const double e : known) inverse += 1 / (e + lambda);
  EXPECT_NEAR(degrees_of_freedom(1.0, inverse, 3, lambda, 1e-3), degrees_of_freedom(known, lambda),
              3 * 4 * test::kFloat64Epsilon);
  // eps · 1e15 is far above λ; and a factorisation that failed.
  EXPECT_TRUE(std::isnan(degrees_of_freedom(1e15, 2 / lambda, 3, lambda, 1e-3)));
  EXPECT_TRUE(std::isnan(degrees_of_freedom(1.0, std::nan(""), 3, lambda, 1e-3)));
}

TEST(Estimate, RefusesALambdaThatIsNotPositive) {
  const std::vector<double> values = {1.0};
  for (const double lambda : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_THROW(degrees_of_freedom(values, lambda), std::invalid_argument);
    EXPECT_THROW(spectrum(test::with_spectrum(values, 1), {.smallest_lambda = lambda}),
                 std::invalid_argument);
  }
}

}  // namespace
}  // namespace dofla
