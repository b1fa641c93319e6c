// Gradients in double precision by central differences: nothing to get wrong.
#pragma once

#include <cmath>
#include <vector>

namespace dofla::reference {

constexpr double kSlopeStep = 1e-4;

// How far a slope may be off, for functions whose third derivative is of the size of `magnitude`
// and whose value is not above a million times that.
inline double slope_error(double magnitude) {
  return kSlopeStep * kSlopeStep * magnitude;
}

// ∂f/∂x_i of every element; f reads x itself.
template <class F>
std::vector<double> slopes(std::vector<double>& x, const F& f) {
  std::vector<double> out;
  for (double& value : x) {
    const double at = value;
    value = at + kSlopeStep;
    const double above = f();
    value = at - kSlopeStep;
    out.push_back((above - f()) / (2 * kSlopeStep));
    value = at;
  }
  return out;
}

inline double largest(const std::vector<double>& x) {
  double most = 0;
  for (const double value : x) most = std::max(most, std::abs(value));
  return most;
}

}  // namespace dofla::reference
