#include "dofla/dof/dof_table.h"

#include <algorithm>
#include <cmath>

#include "dofla/core/error.h"
#include "dofla/dof/estimate.h"

namespace dofla {
namespace {

int64_t sample_count(const DofTable& table) {
  return element_count({table.model.layers, table.heads_in_layer(), table.draws});
}

DofEstimate estimate(const std::vector<double>& draws) {
  const auto count = static_cast<double>(draws.size());
  DofEstimate out;
  for (const double value : draws) out.mean += value / count;
  if (draws.size() == 1) return out;
  double squares = 0;
  for (const double value : draws) squares += (value - out.mean) * (value - out.mean);
  out.spread = std::sqrt(squares / (count - 1));
  return out;
}

// Of one head and draw, by its place among all of them.
double dof_from_spectrum(const DofTable& table, size_t i, double lambda) {
  const std::vector<double>& spectrum = table.spectra[i];
  const double dof = degrees_of_freedom(spectrum, lambda);
  if (rounding_error(spectrum, table.samples, lambda) > kLargestRounding * dof)
    fail(
        "with Gram scale \"{}\" eigenvalues reach {:.1e}, and λ = {:g} is lost in the rounding of "
        "double precision: use Gram scale trace or max",
        name(table.gram), spectrum.front(), lambda);
  return dof;
}

double dof_from_values(const DofTable& table, size_t i, double lambda) {
  const auto at = std::find(table.lambdas.begin(), table.lambdas.end(), lambda);
  const double dof = table.values[i][static_cast<size_t>(at - table.lambdas.begin())];
  if (std::isnan(dof))
    fail(
        "with Gram scale \"{}\" λ = {:g} is lost in the rounding of double precision: use Gram "
        "scale "
        "trace or max",
        name(table.gram), lambda);
  return dof;
}

double checked_dof(const DofTable& table, int64_t layer, int64_t head, int64_t draw,
                   double lambda) {
  const auto i = static_cast<size_t>((layer * table.heads_in_layer() + head) * table.draws + draw);
  try {
    return table.has_spectra() ? dof_from_spectrum(table, i, lambda)
                               : dof_from_values(table, i, lambda);
  } catch (const Error& error) {
    fail("layer {}, head {}: {}", layer + 1, head + 1, error.what());
  }
}

// Throws Error unless the table answers for this λ.
void check_lambda(const DofTable& table, double lambda) {
  if (!(lambda > 0 && std::isfinite(lambda)))
    fail("λ: expected a positive number, found {:g}", lambda);
  if (lambda < table.smallest_lambda)
    fail(
        "λ = {:g} is below {:g}, the smallest that the table was measured for: measure again with "
        "this λ",
        lambda, table.smallest_lambda);
  const std::vector<double>& all = table.lambdas;
  if (!table.has_spectra() && std::find(all.begin(), all.end(), lambda) == all.end())
    fail(
        "λ = {:g} was not measured: a table from a GPU answers for powers of two from {:g} to 1 "
        "and "
        "the λ it was made with; measure again with this λ, or on the CPU for any λ",
        lambda, table.smallest_lambda);
}

}  // namespace

const std::vector<double>& DofTable::spectrum(int64_t layer, int64_t head, int64_t draw) const {
  return spectra.at(static_cast<size_t>((layer * heads_in_layer() + head) * draws + draw));
}

std::vector<DofRow> degrees_of_freedom(const DofTable& table, double lambda) {
  const size_t found = table.has_spectra() ? table.spectra.size() : table.values.size();
  require(static_cast<int64_t>(found) == sample_count(table),
          "heads and draws: expected {}, found {}", sample_count(table), found);
  check_lambda(table, lambda);
  std::vector<DofRow> rows(static_cast<size_t>(table.model.layers));
  for (int64_t s = 0; s < table.model.layers; ++s) {
    DofRow& row = rows[static_cast<size_t>(s)];
    for (int64_t h = 0; h < table.heads_in_layer(); ++h) {
      std::vector<double> draws;
      for (int64_t r = 0; r < table.draws; ++r)
        draws.push_back(checked_dof(table, s, h, r, lambda));
      row.heads.push_back(estimate(draws));
      if (row.heads.back().mean > row.largest().mean) row.largest_head = h;
    }
  }
  return rows;
}

}  // namespace dofla
