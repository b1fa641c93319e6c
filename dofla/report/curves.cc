#include <algorithm>
#include <cmath>
#include <functional>

#include <fmt/format.h>

#include "dofla/report/charts.h"
#include "dofla/report/line_chart.h"
#include "dofla/report/text.h"

namespace dofla {
namespace {

// With more heads than this, faint curves would be a grey blot, and megabytes of it.
constexpr size_t kMostSpectra = 600;
constexpr size_t kMostLossPoints = 160;

// A long curve by the mean of equal runs of steps, each drawn at its last step; points that are not
// finite are left out.
Curve thinned(const Curve& curve) {
  if (curve.size() <= kMostLossPoints) return curve;
  const size_t run = (curve.size() + kMostLossPoints - 1) / kMostLossPoints;
  Curve thin;
  for (size_t begin = 0; begin < curve.size(); begin += run) {
    double sum = 0, count = 0, last = 0;
    for (size_t i = begin; i < std::min(begin + run, curve.size()); ++i) {
      if (!std::isfinite(curve[i].x) || !std::isfinite(curve[i].y)) continue;
      sum += curve[i].y;
      last = curve[i].x;
      ++count;
    }
    if (count > 0) thin.push_back({last, sum / count});
  }
  return thin;
}

bool all_positive(const std::vector<Curve>& curves) {
  for (const Curve& curve : curves)
    for (const CurvePoint& point : curve)
      if (point.y <= 0) return false;
  return true;
}

std::string layer_label(size_t s) {
  return fmt::format("Layer {}", s + 1);
}

// One series a layer, made by `curve`.
template <class Layer, class Make>
void add_layers(LineChart& chart, const std::vector<Layer>& layers, const Make& curve) {
  for (size_t s = 0; s < layers.size(); ++s)
    chart.series.push_back({layer_label(s), curve(layers[s])});
}

}  // namespace

bool shows_other_heads(const DofSection& dof) {
  size_t heads = 0;
  for (const LayerDof& layer : dof.layers) heads += layer.heads.size();
  return heads <= kMostSpectra;
}

std::string render_spectra(const DofSection& dof) {
  LineChart chart("spectra", "Eigenvalues of the Gram matrix by rank",
                  {"rank", "rank", Scale::kLog10}, {"eigenvalue", "eigenvalue", Scale::kLog10});
  const bool others = shows_other_heads(dof);
  for (size_t s = 0; s < dof.layers.size(); ++s) {
    const LayerDof& layer = dof.layers[s];
    const int64_t largest = largest_head(layer);
    for (size_t h = 0; h < layer.heads.size(); ++h) {
      if (static_cast<int64_t>(h) == largest)
        chart.series.push_back(
            {fmt::format("{}, head {}", layer_label(s), h + 1), layer.heads[h].spectrum});
      else if (others)
        chart.background.push_back(layer.heads[h].spectrum);
    }
  }
  chart.y_reference = dof.lambda;
  chart.reference_label = "λ = " + format_lambda(dof.lambda);
  // Eigenvalues far below λ count for nothing, and the smallest are rounding noise.
  chart.y_floor = dof.lambda * 1e-4;
  return render_line_chart(chart);
}

std::string render_dof_by_lambda(const DofSection& dof) {
  LineChart chart("by-lambda", "Degrees of freedom of every layer against lambda",
                  {"λ", "λ =", Scale::kLog2},
                  {"degrees of freedom", "degrees of freedom", Scale::kLog10});
  add_layers(chart, dof.layers, [](const LayerDof& layer) { return layer.dof_by_lambda; });
  chart.x_reference = dof.lambda;
  chart.reference_label = "λ = " + format_lambda(dof.lambda);
  return render_line_chart(chart);
}

std::string render_feature_errors(const DofSection& dof) {
  LineChart chart("feature-errors",
                  "Error of features from the leverage density against their number",
                  {"features a head", "M =", Scale::kLog2}, {"error", "error", Scale::kLog10});
  add_layers(chart, dof.layers, [](const LayerDof& layer) { return layer.leverage_error; });
  for (const LayerDof& layer : dof.layers) chart.background.push_back(layer.gaussian_error);
  return render_line_chart(chart);
}

std::string render_sensitivity(const SensitivitySection& sensitivity) {
  LineChart chart("sensitivity", "Loss that every layer alone adds against its features a head",
                  {"features a head", "M =", Scale::kLog2},
                  {"loss added, nats a token", "loss added",
                   all_positive(sensitivity.layers) ? Scale::kLog10 : Scale::kLinear});
  add_layers(chart, sensitivity.layers, std::identity());
  return render_line_chart(chart);
}

std::string render_predicted_loss(const SensitivitySection& sensitivity) {
  LineChart chart("predicted", "Loss that every layer alone adds: predicted, and as it came",
                  {"layer", "layer"}, {"loss added, nats a token", "loss added"});
  const auto add = [&](const char* label, const std::vector<double>& values) {
    if (!values.empty()) chart.series.push_back({label, by_layer(values)});
  };
  add("Predicted", sensitivity.predicted);
  add("Realised", sensitivity.realised);
  return render_line_chart(chart);
}

std::string render_loss_curves(const TrainingSection& training) {
  LineChart chart("loss", "Training loss of every layer", {"step", "step"},
                  {"training loss", "loss",
                   all_positive(training.layer_loss) ? Scale::kLog10 : Scale::kLinear});
  for (size_t s = 0; s < training.layer_loss.size(); ++s)
    chart.series.push_back({training.layer_loss.size() == 1 ? "All layers" : layer_label(s),
                            thinned(training.layer_loss[s])});
  // One floor is marked by name; those of several layers lie faint behind their curves.
  if (training.floor.size() == 1) {
    chart.y_reference = training.floor.front();
    chart.reference_label = escape_html(training.floor_name);
  } else {
    for (size_t s = 0; s < std::min(training.floor.size(), training.layer_loss.size()); ++s)
      if (const Curve& curve = training.layer_loss[s]; !curve.empty())
        chart.background.push_back(
            {{curve.front().x, training.floor[s]}, {curve.back().x, training.floor[s]}});
  }
  return render_line_chart(chart);
}

std::string render_layer_errors(const TrainingSection& training) {
  LineChart chart("layer-error", "Relative error of every layer's attention output",
                  {"layer", "layer"}, {"relative error", "error"});
  chart.series.push_back({"Error", by_layer(training.layer_error)});
  chart.y_reference = 1;
  chart.reference_label = "an output of zeros";
  return render_line_chart(chart);
}

}  // namespace dofla
