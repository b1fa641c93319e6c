// Dimensions of every layer and degrees of freedom of every head.
#include <algorithm>

#include "dofla/report/text.h"
#include "dofla/reproduce/dof_runs.h"
#include "dofla/reproduce/published.h"
#include "dofla/reproduce/table_parts.h"
#include "dofla/reproduce/tables.h"

namespace dofla {
namespace {

// The value of every layer, over seeds. Layers beyond the teacher's have none.
using Layers = std::vector<std::vector<double>>;

Layers dimensions(const Study& study, const RunFolder& folder, int64_t cost,
                  PlanStrategy strategy) {
  Layers layers(static_cast<size_t>(study.teacher.config().layers));
  for (const uint64_t seed : study.suite.seeds) {
    const Student student = {.cost = cost, .strategy = strategy, .loss = {}, .seed = seed};
    const auto plan = if_recorded([&] { return plan_of(study, folder, student); });
    if (!plan) continue;
    const std::vector<int64_t> dims = plan->dims();
    for (size_t s = 0; s < layers.size(); ++s) layers[s].push_back(static_cast<double>(dims[s]));
  }
  return layers;
}

std::vector<std::vector<double>> mean_dof(const Study& study, const RunFolder& folder) {
  std::vector<std::vector<double>> mean;
  double count = 0;
  for (const uint64_t seed : study.suite.seeds) {
    const auto heads = if_recorded([&] { return read_dof(study, folder, seed); });
    if (!heads) continue;
    ++count;
    if (mean.empty()) {
      mean = *heads;
      continue;
    }
    for (size_t s = 0; s < mean.size(); ++s)
      for (size_t h = 0; h < mean[s].size(); ++h) mean[s][h] += (*heads)[s][h];
  }
  for (auto& row : mean)
    for (double& value : row) value /= count;
  return mean;
}

// The largest of the row is bold, as in the paper.
void add_heads(const std::vector<double>& heads, size_t columns, TableRow& row) {
  const auto largest = std::max_element(heads.begin(), heads.end());
  for (auto head = heads.begin(); head != heads.end(); ++head)
    row.cells.push_back({.text = format_dof(*head), .aside = {}, .bold = head == largest});
  for (size_t h = heads.size(); h < columns; ++h) row.cells.emplace_back();
}

}  // namespace

ResultTable dimension_table(const Study& study, const RunFolder& folder, int64_t cost) {
  const std::vector<int64_t>& published = published::dimensions();
  ResultTable table = {.title = fmt::format("Dimensions at cost {}", cost),
                       .label_names = {"layer"},
                       .columns = {},
                       .rows = {},
                       .notes = {}};
  std::vector<Layers> strategies;
  for (const PlanStrategy strategy : study.suite.strategies) {
    table.columns.push_back({title_of(strategy), study.teacher_name});
    strategies.push_back(dimensions(study, folder, cost, strategy));
  }
  table.columns.push_back({"DoF, C = 64", kPaper});
  const auto layers = static_cast<size_t>(study.teacher.config().layers);
  for (size_t s = 0; s < std::max(layers, published.size()); ++s) {
    TableRow& row = table.rows.emplace_back(TableRow{{std::to_string(s + 1)}, {}});
    for (const Layers& strategy : strategies)
      row.cells.push_back(s < layers ? spread_cell(mean_spread(strategy[s]), 0) : TableCell());
    if (s < published.size())
      row.cells.push_back({.text = std::to_string(published[s]), .aside = {}});
  }
  const DofOptions& dof = study.suite.dof;
  table.notes.push_back(fmt::format(
      "M of every layer, {}; of DoF by head the mean over the layer's heads. Degrees of freedom at "
      "λ = {} from {} samples a head; the paper's plan is of its Table 1, at λ = 2⁻⁴.",
      mean_over_seeds_phrase(study.suite), format_lambda(dof.lambda), dof.samples));
  return table;
}

ResultTable head_table(const Study& study, const RunFolder& folder) {
  const auto& published = published::degrees_of_freedom();
  const auto ours = mean_dof(study, folder);
  const auto heads = static_cast<size_t>(study.feature_heads(study.suite.features));
  ResultTable table = {.title = "Degrees of freedom of every head",
                       .label_names = {"layer"},
                       .columns = {},
                       .rows = {},
                       .notes = {}};
  for (size_t h = 0; h < heads; ++h)
    table.columns.push_back({std::to_string(h + 1), study.teacher_name});
  for (size_t h = 0; h < published.front().size(); ++h)
    table.columns.push_back({std::to_string(h + 1), kPaper});
  for (size_t s = 0; s < std::max(ours.size(), published.size()); ++s) {
    TableRow& row = table.rows.emplace_back(TableRow{{std::to_string(s + 1)}, {}});
    add_heads(s < ours.size() ? ours[s] : std::vector<double>(), heads, row);
    if (s < published.size()) add_heads(published[s], published[s].size(), row);
  }
  table.notes.push_back(
      fmt::format("At λ = {}, the mean over {}; the largest of each layer is bold. The paper's "
                  "(Table 2) are at "
                  "λ = 2⁻⁸.",
                  format_lambda(study.suite.dof.lambda), seeds_phrase(study.suite)));
  return table;
}

}  // namespace dofla
