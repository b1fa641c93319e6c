#include "dofla/report/tables.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "dofla/core/bytes.h"
#include "dofla/report/charts.h"
#include "dofla/report/text.h"

namespace dofla {
namespace {

// More columns than this continue in another table, so that a sheet of paper holds them.
constexpr size_t kMostColumns = 12;
constexpr size_t kMostLambdas = 10;

// Rows of cells; the caller hands in safe HTML.
class Table {
 public:
  explicit Table(const std::vector<std::string>& columns) {
    html_ = "<div class=\"scroll\" tabindex=\"0\"><table>\n<thead><tr>";
    for (const std::string& name : columns) html_ += "<th scope=\"col\">" + name + "</th>";
    html_ += "</tr></thead>\n<tbody>\n";
  }
  void begin_row(const std::string& name) { html_ += "<tr><th scope=\"row\">" + name + "</th>"; }
  void begin_layer(size_t layer) { begin_row(std::to_string(layer + 1)); }
  void add(const std::string& cell) { html_ += "<td>" + cell + "</td>"; }
  void end_row() { html_ += "</tr>\n"; }
  std::string finish() && { return std::move(html_) + "</tbody></table></div>\n"; }

 private:
  std::string html_;
};

// The value, with its spread smaller and lighter behind.
std::string dof_cell(double dof, double spread, bool largest) {
  std::string cell = format_dof(dof);
  if (largest) cell = "<b>" + cell + "</b>";
  if (spread != 0) cell += fmt::format("<small> ±{}</small>", format_number(spread, 2));
  return cell;
}

// "layer", "head 1", "head 2", …
std::vector<std::string> header(const char* corner, const char* kind, size_t first, size_t last) {
  std::vector<std::string> names = {corner};
  for (size_t i = first; i < last; ++i) names.push_back(fmt::format("{} {}", kind, i + 1));
  return names;
}

// Curves are downsampled: an x that the curve leaves out has no number.
const CurvePoint* point_at(const Curve& curve, double x) {
  const auto point =
      std::find_if(curve.begin(), curve.end(), [&](const CurvePoint& p) { return p.x == x; });
  return point == curve.end() ? nullptr : &*point;
}

template <class Has>
bool any_layer(const PlanSection& plan, const Has& has) {
  return std::ranges::any_of(plan.layers, has);
}

}  // namespace

std::string dof_table_html(const DofSection& dof) {
  size_t heads = 0;
  for (const LayerDof& layer : dof.layers) heads = std::max(heads, layer.heads.size());
  std::string html;
  for (size_t first = 0; first < heads; first += kMostColumns) {
    const size_t last = std::min(first + kMostColumns, heads);
    Table table(header("layer", "head", first, last));
    for (size_t s = 0; s < dof.layers.size(); ++s) {
      const LayerDof& layer = dof.layers[s];
      const int64_t largest = largest_head(layer);
      table.begin_layer(s);
      for (size_t h = first; h < std::min(last, layer.heads.size()); ++h)
        table.add(dof_cell(layer.heads[h].dof, layer.heads[h].spread,
                           static_cast<int64_t>(h) == largest));
      table.end_row();
    }
    html += std::move(table).finish();
  }
  return html;
}

std::string plan_table_html(const PlanSection& plan) {
  size_t heads = 0;
  bool differ = false;
  for (const LayerPlan& layer : plan.layers) {
    heads = std::max(heads, layer.heads.size());
    differ = differ || heads_differ(layer);
  }
  std::string html;
  for (size_t first = 0; first < plan.layers.size(); first += kMostColumns) {
    const size_t last = std::min(first + kMostColumns, plan.layers.size());
    Table table(header("", "layer", first, last));
    table.begin_row(differ ? "mean M" : "M");
    for (size_t s = first; s < last; ++s) table.add(format_number(mean_dimension(plan.layers[s])));
    table.end_row();
    // A single draw has no spread, and neither has a plan that nothing was measured for.
    if (any_layer(plan, [](const LayerPlan& layer) { return layer.spread != 0; })) {
      table.begin_row("spread");
      for (size_t s = first; s < last; ++s)
        table.add("±" + format_number(plan.layers[s].spread, 2));
      table.end_row();
    }
    if (any_layer(plan, [](const LayerPlan& layer) { return layer.keys > 0; })) {
      table.begin_row("exact keys");
      for (size_t s = first; s < last; ++s) table.add(format_count(plan.layers[s].keys));
      table.end_row();
    }
    const auto add_cost = [&](const char* what, const auto& text) {
      if (!any_layer(plan, [](const LayerPlan& layer) { return layer.cost.has_value(); })) return;
      table.begin_row(what);
      for (size_t s = first; s < last; ++s)
        table.add(plan.layers[s].cost ? text(*plan.layers[s].cost) : "grows");
      table.end_row();
    };
    add_cost("memory", [](const TokenCost& cost) { return with_bytes_unit(cost.bytes); });
    add_cost("operations a token",
             [](const TokenCost& cost) { return format_number(cost.operations); });
    html += std::move(table).finish();
  }
  for (size_t first = 0; differ && first < heads; first += kMostColumns) {
    const size_t last = std::min(first + kMostColumns, heads);
    Table table(header("layer", "head", first, last));
    for (size_t s = 0; s < plan.layers.size(); ++s) {
      const std::vector<int64_t>& dims = plan.layers[s].heads;
      table.begin_layer(s);
      for (size_t h = first; h < std::min(last, dims.size()); ++h) table.add(format_count(dims[h]));
      table.end_row();
    }
    html += std::move(table).finish();
  }
  return html;
}

std::string spectra_table_html(const DofSection& dof) {
  double most_rank = 0;
  for (const LayerDof& layer : dof.layers)
    for (const HeadDof& head : layer.heads)
      for (const CurvePoint& point : head.spectrum)
        if (std::isfinite(point.x)) most_rank = std::max(most_rank, point.x);
  std::vector<double> ranks;
  for (double rank = 1; rank <= std::min(most_rank, 65536.0); rank *= 2) ranks.push_back(rank);
  std::vector<std::string> names = {"layer", "head"};
  for (const double rank : ranks) names.push_back(fmt::format("rank {:.0f}", rank));
  Table table(names);
  for (size_t s = 0; s < dof.layers.size(); ++s) {
    const int64_t largest = largest_head(dof.layers[s]);
    if (largest < 0) continue;
    table.begin_layer(s);
    table.add(format_count(largest + 1));
    const Curve& spectrum = dof.layers[s].heads[static_cast<size_t>(largest)].spectrum;
    for (const double rank : ranks) {
      const CurvePoint* point = point_at(spectrum, rank);
      table.add(point ? format_number(point->y, 3) : "");
    }
    table.end_row();
  }
  return std::move(table).finish();
}

std::string by_lambda_table_html(const DofSection& dof) {
  std::vector<double> lambdas;
  for (const LayerDof& layer : dof.layers)
    for (const CurvePoint& point : layer.dof_by_lambda) lambdas.push_back(point.x);
  std::erase_if(lambdas, [](double lambda) { return !std::isfinite(lambda); });
  std::sort(lambdas.begin(), lambdas.end());
  lambdas.erase(std::unique(lambdas.begin(), lambdas.end()), lambdas.end());
  const size_t stride = (lambdas.size() + kMostLambdas - 1) / kMostLambdas;
  std::vector<double> shown;
  for (size_t i = 0; i < lambdas.size(); i += stride) shown.push_back(lambdas[i]);
  std::vector<std::string> names = {"layer"};
  for (const double lambda : shown) names.push_back("λ = " + format_lambda(lambda));
  Table table(names);
  for (size_t s = 0; s < dof.layers.size(); ++s) {
    const Curve& curve = dof.layers[s].dof_by_lambda;
    table.begin_layer(s);
    for (const double lambda : shown) {
      const CurvePoint* point = point_at(curve, lambda);
      table.add(point ? format_dof(point->y) : "");
    }
    table.end_row();
  }
  return std::move(table).finish();
}

std::string feature_errors_table_html(const DofSection& dof) {
  std::vector<std::string> names = {"layer", ""};
  if (!dof.layers.empty())
    for (const CurvePoint& point : dof.layers.front().leverage_error)
      names.push_back("M = " + format_number(point.x));
  Table table(names);
  const auto add = [&](size_t s, const char* what, const Curve& curve) {
    table.begin_layer(s);
    table.add(what);
    for (const CurvePoint& column : dof.layers[s].leverage_error) {
      const CurvePoint* point = point_at(curve, column.x);
      table.add(point ? format_number(point->y, 3) : "");
    }
    table.end_row();
  };
  for (size_t s = 0; s < dof.layers.size(); ++s) {
    add(s, "theorem", dof.layers[s].error_bound);
    add(s, "leverage", dof.layers[s].leverage_error);
    add(s, "Gaussian", dof.layers[s].gaussian_error);
  }
  return std::move(table).finish();
}

std::string sensitivity_table_html(const SensitivitySection& sensitivity) {
  std::vector<std::string> names = {"layer"};
  if (!sensitivity.layers.empty())
    for (const CurvePoint& point : sensitivity.layers.front())
      names.push_back("M = " + format_number(point.x));
  Table table(names);
  for (size_t s = 0; s < sensitivity.layers.size(); ++s) {
    table.begin_layer(s);
    for (const CurvePoint& point : sensitivity.layers[s]) table.add(format_number(point.y));
    table.end_row();
  }
  return std::move(table).finish();
}

std::string predicted_loss_table_html(const SensitivitySection& sensitivity) {
  const bool realised = sensitivity.realised.size() == sensitivity.predicted.size();
  std::vector<std::string> names = {"layer", "predicted"};
  if (realised) names.push_back("realised");
  Table table(names);
  for (size_t s = 0; s < sensitivity.predicted.size(); ++s) {
    table.begin_layer(s);
    table.add(format_number(sensitivity.predicted[s]));
    if (realised) table.add(format_number(sensitivity.realised[s]));
    table.end_row();
  }
  return std::move(table).finish();
}

std::string loss_table_html(const TrainingSection& training) {
  const bool has_floor = training.floor.size() == training.layer_loss.size();
  std::vector<std::string> names = {"layer", "first step", "¼", "½", "¾", "last step"};
  if (has_floor) names.push_back("floor");
  Table table(names);
  for (size_t s = 0; s < training.layer_loss.size(); ++s) {
    const Curve& curve = training.layer_loss[s];
    table.begin_layer(s);
    for (size_t quarter = 0; quarter <= 4; ++quarter)
      table.add(curve.empty() ? "" : format_number(curve[(curve.size() - 1) * quarter / 4].y));
    if (has_floor) table.add(format_number(training.floor[s]));
    table.end_row();
  }
  return std::move(table).finish();
}

std::string error_table_html(const TrainingSection& training) {
  Table table({"layer", "relative error"});
  for (size_t s = 0; s < training.layer_error.size(); ++s) {
    table.begin_layer(s);
    table.add(format_number(training.layer_error[s]));
    table.end_row();
  }
  return std::move(table).finish();
}

std::string controls_table_html(const TrainingSection& training) {
  const bool above = training.teacher_loss.has_value();
  Table table({"attention", above ? "above the teacher" : "loss", "memory a sequence"});
  const auto add_row = [&](const std::string& name, double loss, std::optional<int64_t> bytes) {
    table.begin_row(name);
    table.add(format_number(loss - training.teacher_loss.value_or(0)));
    table.add(bytes ? with_bytes_unit(*bytes) : "");
    table.end_row();
  };
  if (training.student_loss) add_row("the student", *training.student_loss, training.state_bytes);
  for (const ControlRow& row : training.controls)
    add_row("<bdi>" + escape_html(row.name) + "</bdi>", row.loss, row.state_bytes);
  return std::move(table).finish();
}

}  // namespace dofla
