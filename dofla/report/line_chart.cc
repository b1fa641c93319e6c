#include "dofla/report/line_chart.h"

#include <algorithm>

#include <fmt/format.h>

#include "dofla/report/chart_frame.h"
#include "dofla/report/text.h"

namespace dofla {
namespace {

constexpr double kHeight = 330;
constexpr double kLeft = 50;
constexpr double kRight = kChartWidth - 18;
constexpr double kTop = 14;
constexpr double kBottom = kHeight - 46;

constexpr size_t kColours = 6;
constexpr size_t kDashes = 3;

struct Axes {
  Axis x, y;
};

bool has_place(const LineChart& chart, const CurvePoint& point) {
  return has_place(chart.x.scale, point.x) && has_place(chart.y.scale, point.y);
}

Axes axes_of(const LineChart& chart) {
  Extent x{chart.x.scale}, y{chart.y.scale};
  const auto include = [&](const Curve& curve) {
    for (const CurvePoint& point : curve) {
      if (!has_place(chart, point)) continue;
      x.include(point.x);
      y.include(point.y);
    }
  };
  for (const Series& series : chart.series) include(series.curve);
  for (const Curve& curve : chart.background) include(curve);
  if (chart.x_reference) x.include(*chart.x_reference);
  if (chart.y_reference) y.include(*chart.y_reference);
  if (chart.y_floor) y.low = std::min(std::max(y.low, *chart.y_floor), y.high);
  return {Axis(x, kLeft, kRight), Axis(y, kBottom, kTop)};
}

// "M50 12h0L60.5 13L70 20": a gap wherever a point has no place. Empty if none has. The h0 gives a
// point that stands alone something to draw.
std::string path_of(const LineChart& chart, const Axes& axes, const Curve& curve) {
  std::string path;
  bool drawing = false;
  for (const CurvePoint& point : curve) {
    if (!has_place(chart, point)) {
      drawing = false;
      continue;
    }
    path +=
        fmt::format("{}{:.1f} {:.1f}", drawing ? "L" : "M", axes.x.at(point.x), axes.y.at(point.y));
    drawing = true;
  }
  return path;
}

std::string frame(const LineChart& chart, const Axes& axes) {
  std::string svg;
  for (const Tick& tick : axes.x.ticks())
    svg += fmt::format(
        "<path class=\"grid\" d=\"M{0:.1f} {1:g}V{2:g}\"/><text class=\"tick-label middle\" "
        "x=\"{0:.1f}\" y=\"{3:g}\">{4}</text>\n",
        tick.position, kTop, kBottom + 4, kBottom + 18, tick.label);
  for (const Tick& tick : axes.y.ticks())
    svg += fmt::format(
        "<path class=\"grid\" d=\"M{0:g} {1:.1f}H{2:g}\"/><text class=\"tick-label end\" "
        "x=\"{3:g}\" y=\"{4:.1f}\">{5}</text>\n",
        kLeft - 4, tick.position, kRight, kLeft - 8, tick.position + 3.5, tick.label);
  svg += fmt::format(
      "<text class=\"axis-title middle\" x=\"{:g}\" y=\"{:g}\">{}</text>\n"
      "<text class=\"axis-title middle\" transform=\"translate(11 {:g})rotate(-90)\">{}</text>\n",
      (kLeft + kRight) / 2, kHeight - 8, chart.x.title, (kTop + kBottom) / 2, chart.y.title);
  return svg;
}

std::string references(const LineChart& chart, const Axes& axes) {
  std::string svg;
  if (chart.x_reference && has_place(chart.x.scale, *chart.x_reference)) {
    const double x = axes.x.at(*chart.x_reference);
    svg += fmt::format(
        "<path class=\"reference\" d=\"M{0:.1f} {1:g}V{2:g}\"/><text class=\"reference-label\" "
        "x=\"{3:.1f}\" y=\"{4:g}\">{5}</text>\n",
        x, kTop, kBottom, x + 5, kTop + 10, chart.reference_label);
  }
  if (chart.y_reference && has_place(chart.y.scale, *chart.y_reference)) {
    const double y = axes.y.at(*chart.y_reference);
    svg += fmt::format(
        "<path class=\"reference\" d=\"M{0:g} {1:.1f}H{2:g}\"/><text class=\"reference-label\" "
        "x=\"{3:g}\" y=\"{4:.1f}\">{5}</text>\n",
        kLeft, y, kRight, kLeft + 6, y - 5, chart.reference_label);
  }
  return svg;
}

bool by_depth(const LineChart& chart) {
  return chart.series.size() > kColours * kDashes;
}

// What tells curve i from the others.
std::string style_of(const LineChart& chart, size_t i) {
  if (!by_depth(chart))
    return fmt::format("class=\"mark series colour-{} dash-{}\"", i % kColours, i / kColours);
  return fmt::format("class=\"mark series by-depth\" style=\"--depth:{:.1f}%\"",
                     100.0 * static_cast<double>(i) / static_cast<double>(chart.series.size() - 1));
}

// The values that the script shows: one of each for every point of the path.
std::string values(const LineChart& chart, const Curve& curve) {
  std::vector<std::string> x, y;
  for (const CurvePoint& point : curve) {
    if (!has_place(chart, point)) continue;
    x.push_back(chart.x.scale == Scale::kLog2 ? format_lambda(point.x) : format_number(point.x));
    y.push_back(format_number(point.y));
  }
  return fmt::format("data-x=\"{}\" data-y=\"{}\"", fmt::join(x, "|"), fmt::join(y, "|"));
}

std::string legend(const LineChart& chart) {
  if (by_depth(chart))
    return "<p class=\"legend\" aria-hidden=\"true\">first layer <span class=\"depths\"></span> "
           "last layer</p>\n";
  std::string html = "<ul class=\"legend\" aria-hidden=\"true\">";
  for (size_t i = 0; i < chart.series.size(); ++i)
    html += fmt::format(
        "<li data-row=\"{}\"><svg viewBox=\"0 0 24 8\"><path class=\"key colour-{} dash-{}\" "
        "d=\"M0 4H24\"/></svg>{}</li>",
        i, i % kColours, i / kColours, escape_html(chart.series[i].label));
  return html + "</ul>\n";
}

}  // namespace

Curve by_layer(const std::vector<double>& values) {
  Curve curve;
  for (const double value : values) curve.push_back({static_cast<double>(curve.size() + 1), value});
  return curve;
}

std::string render_line_chart(const LineChart& chart) {
  const Axes axes = axes_of(chart);
  std::string svg = fmt::format("<div class=\"lines\" data-x-name=\"{}\" data-y-name=\"{}\">\n",
                                chart.x.name, chart.y.name);
  svg += open_chart(chart.kind, kHeight, chart.label);
  svg += fmt::format(
      "<clipPath id=\"{}-clip\"><rect x=\"{:g}\" y=\"{:g}\" width=\"{:g}\" height=\"{:g}\"/>"
      "</clipPath>\n",
      chart.kind, kLeft - 2, kTop - 2, kRight - kLeft + 4, kBottom - kTop + 4);
  svg += frame(chart, axes);
  svg += fmt::format("<g clip-path=\"url(#{}-clip)\">\n", chart.kind);
  for (const Curve& curve : chart.background)
    if (const std::string path = path_of(chart, axes, curve); !path.empty())
      svg += fmt::format("<path class=\"faint\" d=\"{}\"/>\n", path);
  for (size_t i = 0; i < chart.series.size(); ++i) {
    const Series& series = chart.series[i];
    const std::string path = path_of(chart, axes, series.curve);
    svg += fmt::format("<path {} {} {}{}/>\n", style_of(chart, i),
                       mark_attributes(static_cast<int64_t>(i), 0, escape_html(series.label)),
                       values(chart, series.curve),
                       path.empty() ? "" : fmt::format(" d=\"{}\"", path));
  }
  svg += "</g>\n" + references(chart, axes);
  svg += "<circle class=\"pointer\" r=\"4\" visibility=\"hidden\"/>\n</svg>\n";
  return svg + legend(chart) + "</div>\n";
}

}  // namespace dofla
