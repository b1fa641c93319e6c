// Curves over two axes, with a legend beneath. Six colours times three dash patterns tell the
// curves apart without relying on colour alone; more curves are shaded from first to last.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dofla/report/axis.h"
#include "dofla/report/report_data.h"

namespace dofla {

struct Series {
  std::string label;  // "Layer 2, head 5"
  Curve curve;
};

struct ChartAxis {
  const char* title;
  const char* name;  // a short one, as in "rank 4, eigenvalue 0.01"
  Scale scale = Scale::kLinear;
};

struct LineChart {
  // A chart that has no curves yet.
  LineChart(const char* with_kind, const char* with_label, const ChartAxis& with_x,
            const ChartAxis& with_y)
      : kind(with_kind), label(with_label), x(with_x), y(with_y) {}

  const char* kind;   // also the prefix of the element ids in this chart
  const char* label;  // what the chart shows, for a screen reader
  ChartAxis x, y;
  std::vector<Series> series;
  std::vector<Curve> background;      // drawn faint, neither named nor focusable
  std::optional<double> y_floor;      // the axis starts here at the lowest
  std::optional<double> x_reference;  // marked by a line
  std::optional<double> y_reference;
  std::string reference_label;
};

// A curve over the layers, counted from 1.
Curve by_layer(const std::vector<double>& values);

std::string render_line_chart(const LineChart& chart);

}  // namespace dofla
