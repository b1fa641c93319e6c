#include "dofla/features/feature_map.h"

#include <cmath>
#include <numbers>
#include <vector>

#include "dofla/core/error.h"
#include "dofla/core/random.h"

namespace dofla {
namespace {

// Gram-Schmidt on the rows of a square matrix, twice over for the digits the first pass loses.
void orthonormalise(std::vector<double>& rows, int64_t size) {
  for (int64_t i = 0; i < size; ++i) {
    double* row = rows.data() + i * size;
    for (int pass = 0; pass < 2; ++pass)
      for (int64_t j = 0; j < i; ++j) {
        const double* other = rows.data() + j * size;
        double along = 0;
        for (int64_t c = 0; c < size; ++c) along += row[c] * other[c];
        for (int64_t c = 0; c < size; ++c) row[c] -= along * other[c];
      }
    double norm = 0;
    for (int64_t c = 0; c < size; ++c) norm += row[c] * row[c];
    for (int64_t c = 0; c < size; ++c) row[c] /= std::sqrt(norm);
  }
}

// The base-2 van der Corput sequence, which fills (0, 1) evenly at every length.
double radical_inverse(uint64_t index) {
  double value = 0, weight = 0.5;
  for (; index > 0; index >>= 1, weight /= 2) value += static_cast<double>(index & 1) * weight;
  return value;
}

}  // namespace

Tensor gaussian_directions(int64_t features, int64_t head_size, uint64_t seed, uint64_t stream) {
  Random random(seed, stream);
  Tensor z({features, head_size});
  for (int64_t i = 0; i < z.count(); ++i) z.data<float>()[i] = static_cast<float>(random.normal());
  return z;
}

Tensor orthogonal_directions(int64_t features, int64_t head_size, uint64_t seed, uint64_t stream) {
  Random random(seed, stream);
  Tensor z({features, head_size});
  std::vector<double> block(static_cast<size_t>(head_size * head_size));
  for (int64_t m = 0; m < features; ++m) {
    if (m % head_size == 0) {
      for (double& x : block) x = random.normal();
      orthonormalise(block, head_size);
    }
    double square = 0;  // the norm of an independent Gaussian vector
    for (int64_t c = 0; c < head_size; ++c) square += std::pow(random.normal(), 2);
    for (int64_t c = 0; c < head_size; ++c)
      z.data<float>()[m * head_size + c] = static_cast<float>(
          std::sqrt(square) * block[static_cast<size_t>(m % head_size * head_size + c)]);
  }
  return z;
}

// Feature m is exp(t_m · (C x)_m) with C the orthonormal DCT-II and t_m a normal quantile; in our
// notation z_m = D^¼ t_m C_m, without the norm term.
Tensor dijiang_directions(int64_t features, int64_t head_size) {
  Tensor z({features, head_size});
  const double quarter = std::pow(static_cast<double>(head_size), 0.25);
  for (int64_t m = 0; m < features; ++m) {
    const int64_t row = m % head_size;  // blocks are stacked when M > D
    const double weight = normal_quantile(radical_inverse(static_cast<uint64_t>(m) + 1));
    const double scale = std::sqrt((row == 0 ? 1.0 : 2.0) / static_cast<double>(head_size));
    for (int64_t c = 0; c < head_size; ++c) {
      const double angle = std::numbers::pi * (static_cast<double>(c) + 0.5) *
                           static_cast<double>(row) / static_cast<double>(head_size);
      z.data<float>()[m * head_size + c] =
          static_cast<float>(quarter * weight * scale * std::cos(angle));
    }
  }
  return z;
}

double normal_quantile(double probability) {
  require(probability > 0 && probability < 1, "normal_quantile of {}", probability);
  double low = -40, high = 40;  // the distribution function is monotone: halve until it is pinned
  while (high - low > 1e-15 * std::max(1.0, std::abs(low))) {
    const double middle = (low + high) / 2;
    if (middle == low || middle == high) break;
    (0.5 * std::erfc(-middle / std::numbers::sqrt2) < probability ? low : high) = middle;
  }
  return (low + high) / 2;
}

}  // namespace dofla
