#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "dofla/report/axis.h"
#include "dofla/report/chart_frame.h"
#include "dofla/report/fidelity_charts.h"
#include "dofla/report/text.h"

namespace dofla {
namespace {

constexpr double kOverviewLeft = 14;
constexpr double kOverviewRight = kChartWidth - 14;
constexpr double kOverviewTop = 22;
constexpr double kTextPitch = 36;     // of a text's name
constexpr double kStudentPitch = 17;  // of a student on it
constexpr double kLeastKl = 1e-4;     // less is drawn here
constexpr double kMostKl = 10;

double shown(double kl) {
  return std::clamp(std::isfinite(kl) ? kl : kMostKl, kLeastKl, kMostKl);
}

// The range of every grade, by its threshold of the mean divergence alone.
std::string bands(const Axis& x, double bottom) {
  std::string svg;
  double from = kLeastKl;
  for (const auto& [grade, grade_name] : Names<Grade>::kAll) {
    const auto threshold = std::ranges::find(kTextThresholds, grade, &TextThreshold::grade);
    const double to = threshold == kTextThresholds.end() ? kMostKl : threshold->kl;
    svg += fmt::format(
        "<rect class=\"band {0}\" x=\"{1:.1f}\" y=\"{2:g}\" width=\"{3:.1f}\" height=\"{4:.1f}\"/>"
        "<text class=\"tick-label middle\" x=\"{5:.1f}\" y=\"{6:g}\">{0}</text>\n",
        grade_name, x.at(from), kOverviewTop, x.at(to) - x.at(from), bottom - kOverviewTop,
        (x.at(from) + x.at(to)) / 2, kOverviewTop - 8);
    from = to;
  }
  return svg;
}

// A dot, with a line over two standard errors to either side.
std::string dot(const Axis& x, const Divergence& divergence, const std::string& name, size_t s,
                int64_t row, double y) {
  const double at = x.at(shown(divergence.kl));
  std::string svg = fmt::format(
      "<g class=\"mark dot\" {}><rect class=\"row\" x=\"{:g}\" y=\"{:.1f}\" width=\"{:g}\" "
      "height=\"{:g}\"/>",
      mark_attributes(row, 0,
                      fmt::format("{}: KL {}, {} % of the likeliest tokens the same",
                                  escape_html(name), format_number(divergence.kl, 3),
                                  format_number(100 * divergence.same_top, 3))),
      kOverviewLeft, y - kStudentPitch / 2, kOverviewRight - kOverviewLeft, kStudentPitch);
  if (std::isfinite(divergence.kl_stderr))
    svg += fmt::format("<path class=\"key colour-{}\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>", s % 6,
                       x.at(shown(divergence.kl - 2 * divergence.kl_stderr)), y,
                       x.at(shown(divergence.kl + 2 * divergence.kl_stderr)));
  const bool left = at > kChartWidth - 80;  // no room for the number to the right
  return svg + fmt::format(
                   "<circle class=\"fill-{} fill\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4.5\"/><text "
                   "class=\"value{}\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text></g>\n",
                   s % 6, at, y, left ? " end" : "", at + (left ? -9 : 9), y + 3.5,
                   format_number(divergence.kl, 2));
}

// Where the rounded teachers stand on a text.
std::string ticks_of_yardsticks(const FidelityReport& report, size_t text, const Axis& x,
                                double top) {
  std::string svg;
  for (const Yardstick& yardstick : report.yardsticks)
    svg += fmt::format(
        "<path class=\"reference\" d=\"M{0:.1f} {1:.1f}V{2:.1f}\"/><text class=\"reference-label "
        "middle\" x=\"{0:.1f}\" y=\"{3:.1f}\">{4}</text>\n",
        x.at(shown(yardstick.texts[text].kl)), top + 33,
        top + kTextPitch + kStudentPitch * static_cast<double>(report.students.size()), top + 30,
        escape_html(yardstick.name));
  return svg;
}

}  // namespace

std::string students_legend(const FidelityReport& report) {
  const std::vector<std::string> names = short_names(report);
  std::string html = "<ul class=\"legend\" aria-hidden=\"true\">";
  for (size_t s = 0; s < names.size(); ++s)
    html += fmt::format(
        "<li><svg viewBox=\"0 0 24 8\"><circle class=\"fill-{}\" cx=\"12\" cy=\"4\" r=\"4\"/></svg>"
        "{}</li>",
        s % 6, escape_html(names[s]));
  return html + "</ul>\n";
}

std::string render_kl_overview(const FidelityReport& report) {
  const auto texts = static_cast<double>(report.students.front().texts.size());
  const auto students = static_cast<double>(report.students.size());
  const double bottom = kOverviewTop + texts * (kTextPitch + students * kStudentPitch) + 8;
  Extent extent{Scale::kLog10};
  extent.include(kLeastKl);
  extent.include(kMostKl);
  const Axis x(extent, kOverviewLeft, kOverviewRight);
  const std::vector<std::string> names = short_names(report);
  std::string svg = open_chart("overview", bottom + 40, "Mean divergence on every text");
  svg += bands(x, bottom);
  for (const Tick& tick : x.ticks())
    svg += fmt::format(
        "<path class=\"grid\" d=\"M{0:.1f} {1:g}V{2:.1f}\"/><text class=\"tick-label middle\" "
        "x=\"{0:.1f}\" y=\"{3:.1f}\">{4}</text>\n",
        std::clamp(tick.position, kOverviewLeft, kOverviewRight), kOverviewTop, bottom + 4,
        bottom + 17, tick.label);
  svg += fmt::format(
      "<text class=\"axis-title middle\" x=\"{:g}\" y=\"{:.1f}\">mean KL(teacher‖student), nats a "
      "token</text>\n",
      kChartWidth / 2, bottom + 34);
  double y = kOverviewTop;
  int64_t row = 0;
  for (size_t t = 0; t < report.students.front().texts.size(); ++t) {
    const TextFidelity& text = report.students.front().texts[t];
    svg += fmt::format("<text class=\"group\" x=\"{:g}\" y=\"{:.1f}\">{}{}</text>\n",
                       kOverviewLeft + 6, y + 15, escape_html(text.name),
                       text.in_domain ? " · in domain" : "");
    svg += ticks_of_yardsticks(report, t, x, y);
    y += kTextPitch;
    for (size_t s = 0; s < names.size(); ++s, y += kStudentPitch)
      svg += dot(x, report.students[s].texts[t].divergence, names[s] + ", " + text.name, s, row++,
                 y + kStudentPitch / 2);
  }
  return svg + "</svg>\n" + students_legend(report);
}

}  // namespace dofla
