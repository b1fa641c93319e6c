// What the charts have in common: their width, and the rows in which the layers stand.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include <fmt/format.h>

namespace dofla {

// All charts are drawn this wide, so that their text has one size; the page scales them.
inline constexpr double kChartWidth = 480;

// One row a layer. The heat map and the dimension bars use the same rows and so stand level when
// they are side by side.
struct LayerRows {
  static constexpr double kTop = 34;

  explicit LayerRows(int64_t layers)
      : pitch(std::clamp(320.0 / static_cast<double>(std::max<int64_t>(layers, 1)), 7.0, 27.0)),
        bottom(kTop + pitch * static_cast<double>(layers)),
        label_stride(pitch >= 11 ? 1 : 5) {}

  double top(int64_t layer) const { return kTop + pitch * static_cast<double>(layer); }
  double middle(int64_t layer) const { return top(layer) + pitch / 2; }
  bool labelled(int64_t layer) const { return (layer + 1) % label_stride == 0 || layer == 0; }

  double pitch;
  double bottom;
  int64_t label_stride;
};

// Opens the <svg>; `label` is plain text of our own.
inline std::string open_chart(const char* kind, double height, const char* label) {
  return fmt::format(
      "<svg class=\"chart {}\" viewBox=\"0 0 {:g} {:.4g}\" role=\"group\" aria-label=\"{}\">\n",
      kind, kChartWidth, height, label);
}

// The attributes by which the script finds a mark and its neighbours: of all marks of a chart only
// the first is a tab stop, the arrow keys lead to the others.
inline std::string mark_attributes(int64_t row, int64_t column, const std::string& label) {
  return fmt::format(
      "role=\"img\" tabindex=\"{}\" data-row=\"{}\" data-col=\"{}\" aria-label=\"{}\"",
      row == 0 && column == 0 ? 0 : -1, row, column, label);
}

}  // namespace dofla
