#include "tests/reference/dof.h"

#include <algorithm>
#include <cmath>

namespace dofla::reference {
namespace {

Matrix rows_of(const Tensor& tensor) {
  const Tensor wide = tensor.to(DType::kF64);
  Matrix out;
  for (int64_t i = 0; i < wide.size(0); ++i) {
    const double* row = wide.data<double>() + i * wide.size(1);
    out.emplace_back(row, row + wide.size(1));
  }
  return out;
}

long double dot(const std::vector<long double>& a, const std::vector<long double>& b) {
  long double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

Matrix cholesky(const Matrix& a, long double lambda) {
  const size_t n = a.size();
  Matrix l(n, std::vector<long double>(n, 0));
  for (size_t j = 0; j < n; ++j)
    for (size_t i = j; i < n; ++i) {
      long double sum = a[i][j] + (i == j ? lambda : 0);
      for (size_t k = 0; k < j; ++k) sum -= l[i][k] * l[j][k];
      l[i][j] = i == j ? std::sqrt(sum) : sum / l[j][j];
    }
  return l;
}

// |L⁻¹ b|².
long double solved_square(const Matrix& l, const std::vector<long double>& b) {
  std::vector<long double> y(b.size());
  long double square = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    long double sum = b[i];
    for (size_t k = 0; k < i; ++k) sum -= l[i][k] * y[k];
    y[i] = sum / l[i][i];
    square += y[i] * y[i];
  }
  return square;
}

}  // namespace

long double log_divisor(const Tensor& samples, GramScale scale) {
  const Matrix x = rows_of(samples);
  const long double root = std::sqrt(static_cast<long double>(samples.size(1)));
  long double largest = dot(x[0], x[0]) / root;
  for (const auto& row : x) largest = std::max(largest, dot(row, row) / root);
  if (scale == GramScale::kMax) return largest;
  if (scale == GramScale::kSamples) return std::log(static_cast<long double>(x.size()));
  if (scale == GramScale::kNone) return 0;
  long double sum = 0;
  for (const auto& row : x) sum += std::exp(dot(row, row) / root - largest);
  return largest + std::log(sum);
}

Matrix gram(const Tensor& samples, GramScale scale) {
  const Matrix x = rows_of(samples);
  const long double shift = log_divisor(samples, scale);
  const long double root = std::sqrt(static_cast<long double>(samples.size(1)));
  Matrix out(x.size(), std::vector<long double>(x.size()));
  for (size_t i = 0; i < x.size(); ++i)
    for (size_t j = 0; j < x.size(); ++j) out[i][j] = std::exp(dot(x[i], x[j]) / root - shift);
  return out;
}

long double degrees_of_freedom(const Matrix& gram, long double lambda) {
  const Matrix l = cholesky(gram, lambda);
  long double trace = 0;
  for (size_t i = 0; i < gram.size(); ++i) {
    std::vector<long double> unit(gram.size(), 0);
    unit[i] = 1;
    trace += solved_square(l, unit);
  }
  return static_cast<long double>(gram.size()) - lambda * trace;
}

std::vector<long double> log_leverage_scores(const Tensor& samples, const Tensor& candidates,
                                             GramScale scale, long double lambda) {
  const Matrix x = rows_of(samples), l = cholesky(gram(samples, scale), lambda);
  const long double root = std::sqrt(static_cast<long double>(samples.size(1)));
  std::vector<long double> out;
  for (const auto& z : rows_of(candidates)) {
    std::vector<long double> feature;
    for (const auto& row : x)
      feature.push_back(dot(z, row) / std::sqrt(root) - dot(row, row) / (2 * root));
    const long double largest = *std::max_element(feature.begin(), feature.end());
    for (long double& value : feature) value = std::exp(value - largest);
    out.push_back(std::log(solved_square(l, feature)) + 2 * largest - log_divisor(samples, scale));
  }
  return out;
}

}  // namespace dofla::reference
