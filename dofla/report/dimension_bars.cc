#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include <fmt/format.h>

#include "dofla/report/axis.h"
#include "dofla/report/chart_frame.h"
#include "dofla/report/charts.h"
#include "dofla/report/text.h"

namespace dofla {
namespace {

constexpr double kBarsLeft = 30;
constexpr double kBarsRight =
    kChartWidth - 52;  // leaves room for the number behind the longest bar

struct HeadRange {
  double least, most;
};

HeadRange head_range(const LayerPlan& layer) {
  const auto [least, most] = std::minmax_element(layer.heads.begin(), layer.heads.end());
  return {static_cast<double>(*least), static_cast<double>(*most)};
}

std::string label_of(const LayerPlan& layer, int64_t s) {
  std::string label = fmt::format("Layer {}: ", s + 1);
  if (layer.heads.empty()) return label + "no heads";
  label += "M = " + format_number(mean_dimension(layer));
  if (heads_differ(layer))
    label += fmt::format(" on average, from {:.0f} to {:.0f} between its heads",
                         head_range(layer).least, head_range(layer).most);
  if (layer.spread != 0) label += " ± " + format_number(layer.spread, 2);
  return label;
}

// A line from `low` to `high` with a stop at either end.
std::string whisker(const Axis& x, double low, double high, double y) {
  return fmt::format("<path class=\"whisker\" d=\"M{0:.1f} {1:.1f}v6m0 -3H{2:.1f}m0 -3v6\"/>",
                     x.at(low), y - 3, x.at(high));
}

std::string bar(const LayerPlan& layer, const Axis& x, const LayerRows& rows, int64_t s) {
  const double y = rows.middle(s), thickness = rows.pitch * 0.62;
  // The invisible rectangle makes the whole row answer to the pointer.
  std::string svg = fmt::format(
      "<g class=\"mark bar\" {}><rect class=\"row\" x=\"{:g}\" y=\"{:.1f}\" width=\"{:g}\" "
      "height=\"{:.1f}\"/>",
      mark_attributes(s, 0, label_of(layer, s)), kBarsLeft, rows.top(s), kChartWidth - kBarsLeft,
      rows.pitch);
  if (layer.heads.empty()) return svg + "</g>\n";
  const double mean = mean_dimension(layer);
  double end = x.at(mean);
  svg += fmt::format(
      "<rect class=\"fill\" x=\"{:g}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"/>",
      kBarsLeft, y - thickness / 2, std::max(0.0, end - kBarsLeft), thickness);
  if (heads_differ(layer)) {
    for (const int64_t m : layer.heads)
      svg += fmt::format("<circle class=\"head\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\"/>",
                         x.at(static_cast<double>(m)), y, std::min(2.4, rows.pitch / 4));
    end = x.at(head_range(layer).most);
  } else if (std::isfinite(layer.spread) && layer.spread > 0) {
    svg += whisker(x, std::max(0.0, mean - layer.spread), mean + layer.spread, y);
    end = x.at(mean + layer.spread);
  }
  if (rows.pitch >= 11)
    svg += fmt::format("<text class=\"value\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>", end + 6,
                       y + 3.5, format_number(mean, 3));
  return svg + "</g>\n";
}

}  // namespace

double mean_dimension(const LayerPlan& layer) {
  if (layer.heads.empty()) return std::numeric_limits<double>::quiet_NaN();
  double sum = 0;
  for (const int64_t m : layer.heads) sum += static_cast<double>(m);
  return sum / static_cast<double>(layer.heads.size());
}

bool heads_differ(const LayerPlan& layer) {
  return std::adjacent_find(layer.heads.begin(), layer.heads.end(), std::not_equal_to<>()) !=
         layer.heads.end();
}

std::string render_dimension_bars(const PlanSection& plan) {
  const auto layers = static_cast<int64_t>(plan.layers.size());
  const LayerRows rows(layers);
  Extent extent{Scale::kLinear};
  extent.include(0);
  extent.include(plan.cost);
  for (const LayerPlan& layer : plan.layers) {
    if (layer.heads.empty()) continue;
    extent.include(mean_dimension(layer) + layer.spread);
    extent.include(head_range(layer).most);
  }
  const Axis x(extent, kBarsLeft, kBarsRight);

  std::string svg = open_chart("bars", rows.bottom + 56, "Feature dimension of every layer");
  svg += "<text class=\"axis-title\" x=\"0\" y=\"12\">layer</text>\n";
  for (const Tick& tick : x.ticks())
    svg += fmt::format(
        "<path class=\"grid\" d=\"M{0:.1f} {1:g}V{2:.1f}\"/><text class=\"tick-label middle\" "
        "x=\"{0:.1f}\" y=\"{3:.1f}\">{4}</text>\n",
        tick.position, LayerRows::kTop, rows.bottom + 4, rows.bottom + 18, tick.label);
  svg += fmt::format(
      "<text class=\"axis-title middle\" x=\"{:g}\" y=\"{:.1f}\">feature dimension M</text>\n",
      (kBarsLeft + kBarsRight) / 2, rows.bottom + 36);
  for (int64_t s = 0; s < layers; ++s) {
    if (rows.labelled(s))
      svg += fmt::format("<text class=\"tick-label end\" x=\"{:g}\" y=\"{:.1f}\">{}</text>\n",
                         kBarsLeft - 7, rows.middle(s) + 3.5, s + 1);
    svg += bar(plan.layers[static_cast<size_t>(s)], x, rows, s);
  }
  if (has_place(Scale::kLinear, plan.cost))
    svg += fmt::format(
        "<path class=\"reference\" d=\"M{0:.1f} {1:g}V{2:.1f}\"/><text class=\"reference-label "
        "middle\" x=\"{0:.1f}\" y=\"{3:g}\">C = {4}</text>\n",
        x.at(plan.cost), LayerRows::kTop - 5, rows.bottom, LayerRows::kTop - 10,
        format_number(plan.cost));
  return svg + "</svg>\n";
}

}  // namespace dofla
