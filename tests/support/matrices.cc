#include "tests/support/matrices.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "dofla/core/random.h"

namespace dofla::test {

Tensor gaussian(const Shape& shape, double scale, uint64_t seed) {
  Random random(seed);
  Tensor out(shape);
  for (int64_t i = 0; i < out.count(); ++i)
    out.data<float>()[i] = static_cast<float>(scale * random.normal());
  return out;
}

PsdMatrix explicit_matrix(std::vector<double> entries, int64_t size) {
  PsdMatrix matrix;
  matrix.size = size;
  for (int64_t i = 0; i < size; ++i)
    matrix.diagonal.push_back(entries[static_cast<size_t>(i * size + i)]);
  const auto shared = std::make_shared<const std::vector<double>>(std::move(entries));
  matrix.columns = [shared, size](std::span<const int64_t> which, int64_t first_row, double* out,
                                  int64_t stride) {
    for (size_t c = 0; c < which.size(); ++c)
      std::copy_n(shared->data() + which[c] * size + first_row, size - first_row,
                  out + static_cast<int64_t>(c) * stride);
  };
  return matrix;
}

// Applies Householder reflections I − 2vvᵀ from both sides: each keeps the spectrum.
PsdMatrix with_spectrum(const std::vector<double>& spectrum, uint64_t seed) {
  const size_t n = spectrum.size();
  std::vector<double> a(n * n, 0.0);
  for (size_t i = 0; i < n; ++i) a[i * n + i] = spectrum[i];
  Random random(seed);
  for (int reflection = 0; reflection < 3; ++reflection) {
    std::vector<double> v(n);
    double square = 0;
    for (double& x : v) x = random.normal(), square += x * x;
    for (double& x : v) x /= std::sqrt(square);
    std::vector<double> w(n, 0.0);  // a v
    double vw = 0;
    for (size_t i = 0; i < n; ++i)
      for (size_t j = 0; j < n; ++j) w[i] += a[i * n + j] * v[j];
    for (size_t i = 0; i < n; ++i) vw += v[i] * w[i];
    for (size_t i = 0; i < n; ++i)
      for (size_t j = 0; j < n; ++j)
        a[i * n + j] += -2 * v[i] * w[j] - 2 * w[i] * v[j] + 4 * vw * v[i] * v[j];
  }
  return explicit_matrix(std::move(a), static_cast<int64_t>(n));
}

}  // namespace dofla::test
