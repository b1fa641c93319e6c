#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "dofla/report/axis.h"
#include "dofla/report/chart_frame.h"
#include "dofla/report/charts.h"
#include "dofla/report/text.h"

namespace dofla {
namespace {

constexpr double kMapLeft = 30;
constexpr double kMapRight = kChartWidth - 4;

struct Colour {
  double red, green, blue;
};

// Viridis at even steps: rises evenly in lightness and holds for every kind of colour vision.
constexpr std::array<Colour, 9> kViridis = {{{68, 1, 84},
                                             {71, 45, 123},
                                             {59, 82, 139},
                                             {44, 114, 142},
                                             {33, 145, 140},
                                             {40, 174, 128},
                                             {94, 201, 98},
                                             {173, 220, 48},
                                             {253, 231, 37}}};

Colour colour_at(double share) {
  const double place = std::clamp(share, 0.0, 1.0) * (kViridis.size() - 1);
  const auto i = std::min(static_cast<size_t>(place), kViridis.size() - 2);
  const double t = place - static_cast<double>(i);
  const Colour &a = kViridis[i], &b = kViridis[i + 1];
  return {a.red + t * (b.red - a.red), a.green + t * (b.green - a.green),
          a.blue + t * (b.blue - a.blue)};
}

std::string hex(const Colour& c) {
  return fmt::format("#{:02x}{:02x}{:02x}", std::lround(c.red), std::lround(c.green),
                     std::lround(c.blue));
}

using HeatRow = std::vector<HeatMap::Cell>;

int64_t most_heads(const HeatMap& map) {
  size_t most = 0;
  for (const HeatRow& layer : map.layers) most = std::max(most, layer.size());
  return static_cast<int64_t>(most);
}

// The place of the largest number, counted from 0; −1 if there is none.
int64_t largest_of(const HeatRow& layer) {
  int64_t largest = -1;
  double most = 0;
  for (size_t h = 0; h < layer.size(); ++h) {
    if (std::isnan(layer[h].value) || (largest >= 0 && layer[h].value <= most)) continue;
    largest = static_cast<int64_t>(h);
    most = layer[h].value;
  }
  return largest;
}

HeatRow values_of(const LayerDof& layer) {
  HeatRow row;
  for (const HeadDof& head : layer.heads) row.push_back({head.dof, head.spread});
  return row;
}

// Short enough for a cell ("4.7", "174", "NaN"), or empty.
std::string cell_text(double value) {
  if (!std::isfinite(value) || std::abs(value) < 99.95) return format_dof(value);
  return std::abs(value) < 9999.5 ? fmt::format("{:.0f}", value) : "";
}

std::string cell(const HeatMap& map, bool largest, const Axis& share, double width,
                 const LayerRows& rows, int64_t row, int64_t column) {
  const HeatMap::Cell& head = map.layers[static_cast<size_t>(row)][static_cast<size_t>(column)];
  const double x = kMapLeft + width * static_cast<double>(column), y = rows.top(row);
  const std::string label = fmt::format("Layer {}, head {}: {} {}{}", row + 1, column + 1,
                                        map.number(head.value, head.spread), map.what,
                                        largest ? ", the largest of its layer" : "");
  const bool known = has_place(Scale::kLog10, head.value);
  const double level = known ? share.at(head.value) : 0;
  std::string svg = fmt::format(
      "<g class=\"mark cell{}\" {}><rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" "
      "height=\"{:.1f}\" {}/>",
      largest ? " largest" : "", mark_attributes(row, column, label), x + 0.5, y + 0.5, width - 1,
      rows.pitch - 1,
      known ? fmt::format("fill=\"{}\"", hex(colour_at(level))) : "class=\"unknown\"");
  if (width >= 26 && rows.pitch >= 14)
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\"{}>{}</text>", x + width / 2,
                       rows.middle(row) + 3.5,
                       known ? (level > 0.6 ? " class=\"on-light\"" : " class=\"on-dark\"") : "",
                       map.short_number(head.value));
  else if (largest)  // no room for a bold number: a dot marks the maximum
    svg += fmt::format("<circle class=\"{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\"/>",
                       level > 0.6 ? "on-light" : "on-dark", x + width / 2, rows.middle(row),
                       std::min(width, rows.pitch) / 5);
  return svg + "</g>\n";
}

std::string colour_key(const HeatMap& map, const Extent& extent, double top) {
  const double left = kMapLeft + 60, right = kMapRight - 60;
  std::string svg = fmt::format("<defs><linearGradient id=\"{}-viridis\">", map.kind);
  for (size_t i = 0; i < kViridis.size(); ++i)
    svg += fmt::format("<stop offset=\"{}\" stop-color=\"{}\"/>",
                       static_cast<double>(i) / (kViridis.size() - 1), hex(kViridis[i]));
  svg += fmt::format(
      "</linearGradient></defs><rect x=\"{:g}\" y=\"{:.1f}\" width=\"{:g}\" height=\"8\" "
      "fill=\"url(#{}-viridis)\"/>\n",
      left, top, right - left, map.kind);
  for (const Tick& tick : Axis(extent, left, right).ticks())
    svg += fmt::format(
        "<path class=\"tick\" d=\"M{0:.1f} {1:.1f}v4\"/><text class=\"tick-label middle\" "
        "x=\"{0:.1f}\" y=\"{2:.1f}\">{3}</text>\n",
        tick.position, top + 8, top + 23, tick.label);
  return svg + fmt::format(
                   "<text class=\"axis-title middle\" x=\"{:g}\" y=\"{:.1f}\">{}, "
                   "logarithmic</text>\n",
                   (left + right) / 2, top + 39, map.what);
}

}  // namespace

int64_t largest_head(const LayerDof& layer) {
  return largest_of(values_of(layer));
}

std::string render_heat_map(const DofSection& dof) {
  HeatMap map = {.kind = "heat-map",
                 .label = "Degrees of freedom of every head",
                 .what = "degrees of freedom",
                 .number = format_dof,
                 .short_number = cell_text,
                 .layers = {}};
  for (const LayerDof& layer : dof.layers) map.layers.push_back(values_of(layer));
  return render_heat_map(map);
}

std::string render_heat_map(const HeatMap& map) {
  const LayerRows rows(static_cast<int64_t>(map.layers.size()));
  const int64_t heads = most_heads(map);
  const double width = (kMapRight - kMapLeft) / static_cast<double>(std::max<int64_t>(heads, 1));
  Extent extent{Scale::kLog10};
  for (const HeatRow& layer : map.layers)
    for (const HeatMap::Cell& head : layer) extent.include(head.value);
  const Axis share(extent, 0, 1);

  std::string svg = open_chart(map.kind.c_str(), rows.bottom + 56, map.label);
  svg += "<text class=\"axis-title\" x=\"0\" y=\"12\">layer</text>\n";
  svg += fmt::format("<text class=\"axis-title middle\" x=\"{:g}\" y=\"12\">head</text>\n",
                     (kMapLeft + kMapRight) / 2);
  for (int64_t h = 0; h < heads; ++h)
    if (width >= 15 || (h + 1) % 4 == 0)
      svg += fmt::format("<text class=\"tick-label middle\" x=\"{:.1f}\" y=\"28\">{}</text>\n",
                         kMapLeft + width * (static_cast<double>(h) + 0.5), h + 1);
  for (int64_t s = 0; s < std::ssize(map.layers); ++s) {
    const HeatRow& layer = map.layers[static_cast<size_t>(s)];
    const int64_t largest = largest_of(layer);
    if (rows.labelled(s))
      svg += fmt::format("<text class=\"tick-label end\" x=\"{:g}\" y=\"{:.1f}\">{}</text>\n",
                         kMapLeft - 7, rows.middle(s) + 3.5, s + 1);
    for (int64_t h = 0; h < std::ssize(layer); ++h)
      svg += cell(map, h == largest, share, width, rows, s, h);
  }
  return svg + colour_key(map, extent, rows.bottom + 12) + "</svg>\n";
}

}  // namespace dofla
