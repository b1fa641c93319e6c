#include "dofla/plan/bound.h"

#include <algorithm>
#include <cmath>

#include "dofla/core/error.h"

namespace dofla {
namespace {

constexpr double kLargestError = 3;  // the theorem's t

double required(double dof, double delta, double t) {
  return 4 * dof / (t * t) * std::log(64 * dof / (delta * t * t));
}

void check_bound(double dof, double delta) {
  require(dof > 0 && std::isfinite(dof), "degrees of freedom: expected a positive number, found {}",
          dof);
  require(delta > 0 && delta < 1, "delta: expected a number between 0 and 1, found {}", delta);
}

}  // namespace

int64_t features_required(double dof, double delta, double t) {
  check_bound(dof, delta);
  require(t > 0 && t <= kLargestError, "t: expected a number above 0 and at most 3, found {}", t);
  const double bound = required(dof, delta, t);
  require(bound < 0x1p53, "t = {} asks for more features than can be counted", t);
  return std::max<int64_t>(1, static_cast<int64_t>(std::ceil(bound)));
}

std::optional<double> error_required(double dof, double delta, int64_t features) {
  check_bound(dof, delta);
  const auto M = static_cast<double>(features);
  if (required(dof, delta, kLargestError) > M) return {};
  double low = 0, high = kLargestError;  // the M that is required falls as t grows
  for (int step = 0; step < 60; ++step) {
    const double middle = (low + high) / 2;
    (required(dof, delta, middle) > M ? low : high) = middle;
  }
  return high;
}

double kernel_error_bound(std::span<const double> spectrum, double lambda, double delta, double t) {
  require(!spectrum.empty(), "the bound of a kernel needs its spectrum");
  double trace = 0, squares = 0;
  for (const double e : spectrum) {
    trace += e;
    squares += e * e;
  }
  const double bound = t * t * trace * spectrum.front() + lambda * t * (1 + t + 1 / delta) * trace;
  return std::sqrt(bound / squares);
}

double sum_error_bound(std::span<const double> spectrum, double lambda, double t) {
  require(!spectrum.empty(), "the bound of sums needs the spectrum");
  return t * (spectrum.front() + lambda) / spectrum.front();
}

std::vector<LayerBound> theorem_bounds(const DofTable& table, double lambda, double delta,
                                       double t) {
  const std::vector<DofRow> rows = degrees_of_freedom(table, lambda);
  const bool measured = !table.errors.empty() && lambda == table.lambda;
  std::vector<LayerBound> out;
  for (int64_t s = 0; s < table.model.layers; ++s) {
    const DofRow& row = rows[static_cast<size_t>(s)];
    const double dof = row.largest().mean;
    LayerBound bound;
    bound.head = row.largest_head;
    bound.features = features_required(dof, delta, t);
    if (table.has_spectra()) {
      double kernel = 0, sums = 0;
      for (int64_t r = 0; r < table.draws; ++r) {
        const std::vector<double>& spectrum = table.spectrum(s, bound.head, r);
        kernel += kernel_error_bound(spectrum, lambda, delta, t);
        sums += sum_error_bound(spectrum, lambda, t);
      }
      bound.kernel = kernel / static_cast<double>(table.draws);
      bound.sums = sums / static_cast<double>(table.draws);
    }
    if (measured) {
      bound.measured = table.errors[static_cast<size_t>(s * table.heads_in_layer() + bound.head)];
      for (const int64_t M : table.ladder)
        bound.error_required.push_back(error_required(dof, delta, M));
    }
    out.push_back(std::move(bound));
  }
  return out;
}

}  // namespace dofla
