#include "dofla/report/from_dof_table.h"

#include <algorithm>
#include <cmath>

#include "dofla/core/error.h"
#include "dofla/plan/bound.h"

namespace dofla {
namespace {

// The mean over the draws, as far as every draw reaches, at ranks that are even on a logarithm and
// hold every power of two.
Curve mean_spectrum(const DofTable& table, int64_t layer, int64_t head) {
  if (!table.has_spectra()) return {};
  size_t length = table.spectrum(layer, head, 0).size();
  for (int64_t r = 1; r < table.draws; ++r)
    length = std::min(length, table.spectrum(layer, head, r).size());
  Curve curve;
  for (int quarter = 0;; ++quarter) {
    const auto rank = static_cast<size_t>(std::lround(std::exp2(quarter / 4.0)));
    if (rank > length) return curve;
    if (!curve.empty() && static_cast<double>(rank) == curve.back().x) continue;
    double sum = 0;
    for (int64_t r = 0; r < table.draws; ++r) sum += table.spectrum(layer, head, r)[rank - 1];
    curve.push_back({static_cast<double>(rank), sum / static_cast<double>(table.draws)});
  }
}

// One curve a layer. A λ for which the table has no answer is left out.
std::vector<Curve> dof_by_lambda(const DofTable& table) {
  std::vector<Curve> curves(static_cast<size_t>(table.model.layers));
  const int first = static_cast<int>(std::ceil(std::log2(table.smallest_lambda)));
  for (int exponent = first; exponent <= 0; ++exponent) {
    const double lambda = std::exp2(exponent);
    std::vector<DofRow> rows;
    try {
      rows = degrees_of_freedom(table, lambda);
    } catch (const Error&) {
      continue;
    }
    for (size_t s = 0; s < rows.size(); ++s) curves[s].push_back({lambda, rows[s].largest().mean});
  }
  return curves;
}

constexpr double kBoundDelta = 0.1;

void add_errors(const LayerBound& bound, const std::vector<int64_t>& ladder, LayerDof& layer) {
  for (size_t i = 0; bound.measured && i < ladder.size(); ++i) {
    const auto M = static_cast<double>(ladder[i]);
    if (bound.error_required[i]) layer.error_bound.push_back({M, *bound.error_required[i]});
    layer.leverage_error.push_back({M, bound.measured->leverage[i]});
    layer.gaussian_error.push_back({M, bound.measured->gaussian[i]});
  }
}

double relative_spread(const DofEstimate& dof) {
  return dof.mean > 0 ? dof.spread / dof.mean : 0;
}

// How far the mean M of a layer moves when the degrees of freedom move by their spread.
double spread_of_layer(const DimensionPlan& plan, size_t s, const DofRow& row) {
  const std::vector<int64_t>& heads = plan.heads[s];
  if (heads.empty()) return 0;  // softmax attention
  const auto M = static_cast<double>(heads.front());
  switch (plan.strategy) {
    case PlanStrategy::kFix:
    case PlanStrategy::kSensitivity:
      return 0;
    case PlanStrategy::kDof:
      return M * relative_spread(row.largest());
    case PlanStrategy::kDofClip:  // a clipped M does not move
      return heads.front() == plan.model.head_size ? 0 : M * relative_spread(row.largest());
    case PlanStrategy::kDofHead:
      break;
  }
  double squares = 0;  // the heads are drawn independently
  for (size_t h = 0; h < heads.size(); ++h) {
    const double moves = static_cast<double>(heads[h]) * plan.power * relative_spread(row.heads[h]);
    squares += moves * moves;
  }
  return std::sqrt(squares) / static_cast<double>(heads.size());
}

}  // namespace

DofSection from_dof_table(const DofTable& table, double lambda) {
  DofSection section{lambda, std::string(name(table.gram)), table.samples, table.draws, {}};
  const std::vector<DofRow> rows = degrees_of_freedom(table, lambda);
  const std::vector<Curve> curves = dof_by_lambda(table);
  const std::vector<LayerBound> bounds = theorem_bounds(table, lambda, kBoundDelta, 1);
  for (size_t s = 0; s < rows.size(); ++s) {
    LayerDof layer{{}, curves[s], {}, {}, {}};
    add_errors(bounds[s], table.ladder, layer);
    for (size_t h = 0; h < rows[s].heads.size(); ++h)
      layer.heads.push_back(
          {rows[s].heads[h].mean, rows[s].heads[h].spread,
           mean_spectrum(table, static_cast<int64_t>(s), static_cast<int64_t>(h))});
    section.layers.push_back(std::move(layer));
  }
  return section;
}

namespace {

// Of a key head.
int64_t mean_keys(const DimensionPlan& plan, size_t layer) {
  const ExactKeys exact = exact_keys_of(plan.exact, layer);
  return exact.empty() ? 0 : exact.total_keys(plan.key_heads) / plan.key_heads;
}

}  // namespace

PlanSection from_dimension_plan(const DimensionPlan& plan, const DofTable* table) {
  PlanSection section{std::string(name(plan.strategy)), static_cast<double>(plan.cost), {}};
  for (size_t s = 0; s < plan.heads.size(); ++s)
    section.layers.push_back({plan.heads[s], 0, mean_keys(plan, s), plan.token_cost(s)});
  if (!table) return section;
  if (plan.model != table->model)
    fail("the plan is for {}, the degrees of freedom are of {}: make a plan from this table",
         to_string(plan.model), to_string(table->model));
  const std::vector<DofRow> rows = degrees_of_freedom(*table, plan.lambda);
  for (size_t s = 0; s < rows.size(); ++s)
    section.layers[s].spread = spread_of_layer(plan, s, rows[s]);
  return section;
}

}  // namespace dofla
