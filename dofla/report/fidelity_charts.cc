#include "dofla/report/fidelity_charts.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "dofla/core/file.h"
#include "dofla/report/charts.h"
#include "dofla/report/line_chart.h"
#include "dofla/report/text.h"

namespace dofla {
namespace {

constexpr double kLeastShown = 1e-4;  // nats: less is rounding

std::string error_text(double value, double) {
  return format_number(value, 3);
}
std::string error_cell(double value) {
  return fmt::format("{:.2f}", value);
}

// On a logarithm, unless none of them has a place there. One student that is its teacher, such as a
// control, must not flatten the others.
void scale_divergences(LineChart& chart) {
  const bool any = std::ranges::any_of(chart.series, [](const Series& series) {
    return std::ranges::any_of(
        series.curve, [](const CurvePoint& point) { return has_place(Scale::kLog10, point.y); });
  });
  if (!any) return;
  chart.y.scale = Scale::kLog10;
  chart.y_floor = kLeastShown;
}

// One series a student, made by `curve`.
template <class Make>
void add_students(LineChart& chart, const FidelityReport& report, const Make& curve) {
  const std::vector<std::string> names = short_names(report);
  for (size_t s = 0; s < report.students.size(); ++s)
    chart.series.push_back({names[s], curve(report.students[s])});
}

Curve reliability_of(const Calibration& calibration) {
  Curve curve;
  for (const ReliabilityBin& bin : calibration.bins)
    if (bin.tokens > 0) curve.push_back({bin.confidence, bin.accuracy});
  return curve;
}

}  // namespace

std::string last_part(const std::string& folder) {
  const fs::path path(folder);
  const std::string last = (path.has_filename() ? path : path.parent_path()).filename().string();
  return last.empty() || last == "." || last == ".." ? folder : last;
}

std::vector<std::string> short_names(const FidelityReport& report) {
  std::vector<std::string> names;
  for (const StudentFidelity& student : report.students) names.push_back(last_part(student.name));
  if (std::set<std::string>(names.begin(), names.end()).size() < names.size())
    for (size_t s = 0; s < names.size(); ++s) names[s] = report.students[s].name;
  return names;
}

std::string render_kl_percentiles(const FidelityReport& report) {
  LineChart chart("percentiles", "Divergence up to which a share of the tokens stays",
                  {"tokens in a thousand that are further away", "in a thousand", Scale::kLog10},
                  {"KL, nats", "are further than"});
  add_students(chart, report, [](const StudentFidelity& student) {
    const Divergence& d = student.all;
    return Curve{{1, d.kl_999}, {10, d.kl_99}, {50, d.kl_95}, {100, d.kl_90}, {500, d.kl_median}};
  });
  scale_divergences(chart);
  return render_line_chart(chart);
}

std::string render_reliability(const FidelityReport& report) {
  LineChart chart("reliability", "Share of right predictions against their probability",
                  {"probability of the likeliest token", "probability"},
                  {"share that was right", "right"});
  add_students(chart, report, [](const StudentFidelity& student) {
    return reliability_of(student.all.calibration);
  });
  chart.series.push_back(
      {"Teacher", reliability_of(report.students.front().all.teacher_calibration)});
  chart.background.push_back({{0, 0}, {1, 1}});
  return render_line_chart(chart);
}

std::string render_kl_by_position(const FidelityReport& report) {
  LineChart chart("position", "Divergence by the position of a token in its window",
                  {"position in the window, up to", "up to token", Scale::kLog2},
                  {"KL, nats a token", "KL"});
  add_students(chart, report, [](const StudentFidelity& student) {
    Curve curve;
    for (const Slice& slice : student.where.by_position)
      curve.push_back({static_cast<double>(slice.last), slice.kl});
    return curve;
  });
  scale_divergences(chart);
  return render_line_chart(chart);
}

std::string render_attention_errors(const FidelityReport& report) {
  LineChart chart("attention-error", "Relative error of every layer's attention output",
                  {"layer", "layer"}, {"relative error", "error"});
  add_students(chart, report,
               [](const StudentFidelity& student) { return by_layer(student.layer_error); });
  return render_line_chart(chart);
}

std::string render_head_errors(const StudentFidelity& student, size_t index) {
  HeatMap map = {.kind = fmt::format("head-error-{}", index),
                 .label = "Relative error of every head's output",
                 .what = "relative error",
                 .number = error_text,
                 .short_number = error_cell,
                 .layers = {}};
  for (const std::vector<double>& layer : student.head_error) {
    map.layers.emplace_back();
    for (const double error : layer) map.layers.back().push_back({error, 0});
  }
  return render_heat_map(map);
}

std::string render_memory(const FidelityReport& report) {
  LineChart chart("memory", "Memory of a sequence against its length",
                  {"tokens of the sequence", "tokens", Scale::kLog10},
                  {"bytes", "bytes", Scale::kLog10});
  const auto curve = [](const Cost& cost) {
    Curve points;
    for (size_t i = 0; i < kCostLengths.size(); ++i)
      points.push_back({static_cast<double>(kCostLengths[i]), static_cast<double>(cost.bytes[i])});
    return points;
  };
  add_students(chart, report, [&](const StudentFidelity& student) { return curve(student.cost); });
  chart.series.push_back({"Teacher", curve(report.teacher_cost)});
  return render_line_chart(chart);
}

}  // namespace dofla
