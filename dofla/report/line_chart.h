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

struct LineChart {
  const char* kind = "";   // also the prefix of the element ids in this chart
  const char* label = "";  // what the chart shows, for a screen reader
  const char* x_title = "";
  const char* y_title = "";
  const char* x_name = "";  // short names, as in "rank 4, eigenvalue 0.01"
  const char* y_name = "";
  Scale x_scale = Scale::kLinear;
  Scale y_scale = Scale::kLinear;
  std::vector<Series> series;
  std::vector<Curve> background;      // drawn faint, neither named nor focusable
  std::optional<double> y_floor;      // the axis starts here at the lowest
  std::optional<double> x_reference;  // marked by a line
  std::optional<double> y_reference;
  std::string reference_label;
};

std::string render_line_chart(const LineChart& chart);

}  // namespace dofla
