#include "dofla/dof/gram.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <utility>

#include <cblas.h>

#include "dofla/dof/vector_exp.h"

namespace dofla {
namespace {

template <class T>
std::vector<double> scaled(const Tensor& rows, double factor) {
  const T* from = rows.data<T>();
  std::vector<double> out(static_cast<size_t>(rows.count()));
  for (size_t i = 0; i < out.size(); ++i) out[i] = factor * static_cast<double>(from[i]);
  return out;
}

double log_sum_exp(const std::vector<double>& x, double largest) {
  double sum = 0;
  for (const double value : x) sum += std::exp(value - largest);
  return largest + std::log(sum);
}

double log_divisor(GramScale scale, const std::vector<double>& log_diagonal, double largest) {
  switch (scale) {
    case GramScale::kTrace:
      return log_sum_exp(log_diagonal, largest);
    case GramScale::kMax:
      return largest;
    case GramScale::kSamples:
      return std::log(static_cast<double>(log_diagonal.size()));
    case GramScale::kNone:
      return 0;
  }
  require(false, "unknown Gram scale");
  return 0;
}

}  // namespace

std::vector<double> kernel_rows(const Tensor& rows) {
  const double shrink = std::pow(static_cast<double>(rows.size(-1)), -0.25);
  return rows.dtype() == DType::kF64 ? scaled<double>(rows, shrink) : scaled<float>(rows, shrink);
}

KernelSamples kernel_samples(const Tensor& samples, GramScale scale) {
  require(samples.rank() == 2 && samples.count() > 0, "samples: expected [J, D], found {}",
          to_string(samples.shape()));
  KernelSamples out;
  out.count = samples.size(0);
  out.width = samples.size(1);
  out.rows = kernel_rows(samples);

  out.log_diagonal.resize(static_cast<size_t>(out.count));
  const auto D = static_cast<int>(out.width);
  for (int64_t i = 0; i < out.count; ++i) {
    const double* row = out.rows.data() + i * out.width;
    const double square = cblas_ddot(D, row, 1, row, 1);
    if (!std::isfinite(square)) fail("a query or key is not finite");
    out.log_diagonal[static_cast<size_t>(i)] = square;
  }
  const double largest = *std::max_element(out.log_diagonal.begin(), out.log_diagonal.end());
  out.log_factor = -log_divisor(scale, out.log_diagonal, largest);
  // e³⁰⁰ leaves room for the squares and sums that eigenvalues are made of.
  constexpr double kLargestLog = 300;
  if (largest + out.log_factor > kLargestLog)
    fail(
        "the attention kernel reaches e^{:.0f}, too much for double precision with Gram scale "
        "\"{}\": use trace or max",
        largest, name(scale));
  return out;
}

PsdMatrix gram_matrix(KernelSamples samples) {
  PsdMatrix matrix;
  matrix.size = samples.count;
  matrix.diagonal = samples.log_diagonal;
  exp_shifted(matrix.diagonal.data(), matrix.size, -samples.log_factor);

  const auto shared = std::make_shared<const KernelSamples>(std::move(samples));
  matrix.columns = [shared](std::span<const int64_t> which, int64_t first_row, double* out,
                            int64_t stride) {
    const int64_t D = shared->width, height = shared->count - first_row;
    std::vector<double> chosen(which.size() * static_cast<size_t>(D));
    for (size_t c = 0; c < which.size(); ++c)
      std::copy_n(shared->rows.data() + which[c] * D, D,
                  chosen.data() + static_cast<int64_t>(c) * D);
    cblas_dgemm(CblasColMajor, CblasTrans, CblasNoTrans, static_cast<int>(height),
                static_cast<int>(which.size()), static_cast<int>(D), 1.0,
                shared->rows.data() + first_row * D, static_cast<int>(D), chosen.data(),
                static_cast<int>(D), 0.0, out, static_cast<int>(stride));
    for (size_t c = 0; c < which.size(); ++c)
      exp_shifted(out + static_cast<int64_t>(c) * stride, height, -shared->log_factor);
  };
  return matrix;
}

std::vector<double> lower_triangle(const PsdMatrix& matrix) {
  constexpr int64_t kBlock = 64;
  const int64_t n = matrix.size;
  std::vector<double> out(static_cast<size_t>(n * n));
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    std::vector<int64_t> which(static_cast<size_t>(std::min(kBlock, n - begin)));
    std::iota(which.begin(), which.end(), begin);
    matrix.columns(which, begin, out.data() + begin * n + begin, n);
  }
  return out;
}

}  // namespace dofla
