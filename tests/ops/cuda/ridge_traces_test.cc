// Traces of ridge inverses on the GPU against eigenvalues that LAPACK finds, and known spectra.
#include "dofla/ops/ridge_traces.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "dofla/dof/estimate.h"
#include "tests/support/gpu.h"
#include "tests/support/random_values.h"

namespace dofla {
namespace {

constexpr double kEpsilon = std::numeric_limits<double>::epsilon();

class CudaRidgeTraces : public test::OnGpu {
 protected:
  // N_λ of every head, [heads, lambdas].
  std::vector<double> dof(const RidgeTraces& traces, int64_t samples) const {
    std::vector<double> out;
    for (size_t i = 0; i < traces.inverse.size(); ++i)
      out.push_back(static_cast<double>(samples) - lambdas[i % lambdas.size()] * traces.inverse[i]);
    return out;
  }
  std::vector<double> dof(const Tensor& samples, GramScale scale) const {
    return dof(ridge_traces(samples.to(gpu), scale, lambdas), samples.size(1));
  }
  // How far rounding moves N_λ: eigenvalues by √J · eps · tr Σ at most, N_λ by tr(Σ+λI)⁻¹ ≤ J/λ
  // times that. Two implementations that both round, at two standard deviations.
  static double tolerance(int64_t samples, double gram_trace, double lambda) {
    const auto J = static_cast<double>(samples);
    return 4 * std::sqrt(J) * kEpsilon * gram_trace * J / lambda;
  }
  void expect_spectrum(const Tensor& samples, GramScale scale, const std::vector<double>& known) {
    const std::vector<double> found = dof(samples, scale);
    double trace = 0;
    for (const double e : known) trace += e;
    for (size_t l = 0; l < lambdas.size(); ++l)
      EXPECT_NEAR(found[l], degrees_of_freedom(known, lambdas[l]),
                  tolerance(samples.size(1), trace, lambdas[l]));
  }
  // J vectors of this length, each along an axis of its own.
  static Tensor axes(int64_t J, double length) {
    Tensor out = Tensor::zeros({1, J, J});
    for (int64_t i = 0; i < J; ++i) out.data<float>()[i * J + i] = static_cast<float>(length);
    return out;
  }
  // Three heads of J samples, from low rank to high, against LAPACK.
  void compare(int64_t J, GramScale scale) {
    constexpr int64_t kHeads = 3, D = 16;
    Random random(3);
    Tensor samples = test::normal_tensor({kHeads, J, D}, random);
    for (int64_t h = 0; h < kHeads; ++h)
      for (int64_t i = 0; i < J * D; ++i)
        samples.data<float>()[h * J * D + i] *= 0.5f * static_cast<float>(h + 1);
    const RidgeTraces traces = ridge_traces(samples.to(gpu), scale, lambdas);
    ASSERT_EQ(traces.gram.size(), size_t{kHeads});
    const std::vector<double> found = dof(traces, J);
    for (int64_t h = 0; h < kHeads; ++h) {
      const KernelSamples kernel = kernel_samples(samples.slice(h, h + 1).reshape({J, D}), scale);
      const double largest =
          *std::max_element(kernel.log_diagonal.begin(), kernel.log_diagonal.end());
      const PsdMatrix matrix = gram_matrix(kernel);
      double trace = 0;
      for (const double e : matrix.diagonal) trace += e;
      const auto head = static_cast<size_t>(h);
      // Entries are known as well as their logarithms, which are sums of D terms.
      EXPECT_NEAR(traces.gram[head], trace, 4 * std::sqrt(D) * kEpsilon * (1 + largest) * trace);
      const std::vector<double> spectrum = dense_spectrum(matrix);
      for (size_t l = 0; l < lambdas.size(); ++l)
        EXPECT_NEAR(found[head * lambdas.size() + l], degrees_of_freedom(spectrum, lambdas[l]),
                    tolerance(J, trace, lambdas[l]))
            << "J " << J << ", head " << h << ", scale " << name(scale) << ", λ " << lambdas[l];
    }
  }
  // J vectors whose Gram matrix has a spectrum that is known.
  void expect_known_spectra(int64_t J) {
    const auto count = static_cast<size_t>(J);
    const double root = std::sqrt(static_cast<double>(J));
    // Vectors at right angles: 1 on the diagonal, e^(−|x|²/√D) beside it.
    for (const double log_ratio : {2.0, 700.0}) {  // the latter is the identity
      const Tensor samples = axes(J, std::sqrt(log_ratio * root));
      const double length = samples.data<float>()[0], b = std::exp(-length * length / root);
      std::vector<double> known(count, 1 - b);
      known[0] = 1 + static_cast<double>(J - 1) * b;
      expect_spectrum(samples, GramScale::kMax, known);
    }
    Tensor same({1, J, 7});  // rank one
    for (int64_t i = 0; i < same.count(); ++i)
      same.data<float>()[i] = static_cast<float>(i % 7) - 2;
    expect_spectrum(same, GramScale::kTrace, {1.0});
    expect_spectrum(same, GramScale::kMax, {static_cast<double>(J)});
  }

  const std::vector<double> lambdas = {1.0, 0x1p-4, 0x1p-8, 0x1p-16};
};

// More than one block, the last of them almost empty.
TEST_F(CudaRidgeTraces, AgreeWithEigenvalues) {
  compare(65, GramScale::kTrace);
}

TEST_F(CudaRidgeTraces, AgreeWithEigenvaluesLarge) {
  for (const int64_t J : {1, 63, 64, 65, 200, 321, 1000})
    for (const GramScale scale :
         {GramScale::kTrace, GramScale::kMax, GramScale::kSamples, GramScale::kNone})
      compare(J, scale);
}

TEST_F(CudaRidgeTraces, KnownSpectra) {
  expect_known_spectra(5);
}

TEST_F(CudaRidgeTraces, KnownSpectraLarge) {
  for (const int64_t J : {64, 130}) expect_known_spectra(J);
}

TEST_F(CudaRidgeTraces, RightWhenScaledBy30) {
  Random random(4);
  Tensor samples = test::normal_tensor({1, 90, 16}, random);
  for (int64_t i = 0; i < samples.count(); ++i) samples.data<float>()[i] *= 36;
  expect_spectrum(
      samples, GramScale::kTrace,
      dense_spectrum(gram_matrix(kernel_samples(samples.reshape({90, 16}), GramScale::kTrace))));
}

TEST_F(CudaRidgeTraces, MoreHeadsThanAreWorkedOnTogetherLarge) {
  constexpr int64_t kHeads = 1030, J = 3, D = 2;
  Random random(5);
  const Tensor samples = test::normal_tensor({kHeads, J, D}, random);
  const std::vector<double> together = dof(samples, GramScale::kTrace);
  for (const int64_t h : {int64_t{0}, int64_t{1023}, int64_t{1024}, kHeads - 1}) {
    const std::vector<double> alone = dof(samples.slice(h, h + 1), GramScale::kTrace);
    for (size_t l = 0; l < lambdas.size(); ++l)
      EXPECT_NEAR(together[static_cast<size_t>(h) * lambdas.size() + l], alone[l],
                  tolerance(J, 1, lambdas[l]));
  }
}

TEST_F(CudaRidgeTraces, SayWhatCannotBeTold) {
  Random random(6);
  Tensor samples = test::normal_tensor({3, 80, 8}, random);
  samples.data<float>()[80 * 8 + 5] = std::numeric_limits<float>::quiet_NaN();  // in head 1
  const RidgeTraces traces = ridge_traces(samples.to(gpu), GramScale::kTrace, lambdas);
  EXPECT_FALSE(std::isnan(traces.gram[0]));
  EXPECT_TRUE(std::isnan(traces.gram[1]));
  EXPECT_FALSE(std::isnan(traces.gram[2]));

  // Equal vectors whose K is e¹⁰⁰, beside which λ is nothing, and e⁸⁰⁰, which overflows.
  for (const double log_entry : {100.0, 800.0}) {
    Tensor same({1, 70, 4});
    for (int64_t i = 0; i < same.count(); ++i)
      same.data<float>()[i] = static_cast<float>(std::sqrt(log_entry / 2));
    const RidgeTraces lost = ridge_traces(same.to(gpu), GramScale::kNone, lambdas);
    EXPECT_FALSE(std::isnan(lost.gram[0]));
    for (size_t l = 0; l < lambdas.size(); ++l)
      EXPECT_TRUE(
          std::isnan(degrees_of_freedom(lost.gram[0], lost.inverse[l], 70, lambdas[l], 1e-3)));
  }
}

TEST_F(CudaRidgeTraces, RefuseMisuse) {
  const Tensor samples = Tensor::zeros({1, 2, 2});
  EXPECT_THROW(ridge_traces(samples, GramScale::kMax, lambdas), std::invalid_argument);
  EXPECT_THROW(ridge_traces(samples.reshape({2, 2}).to(gpu), GramScale::kMax, lambdas),
               std::invalid_argument);
  const std::vector<double> zero = {0.0};
  EXPECT_THROW(ridge_traces(samples.to(gpu), GramScale::kMax, zero), std::invalid_argument);
}

}  // namespace
}  // namespace dofla
