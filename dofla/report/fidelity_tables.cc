#include "dofla/report/fidelity_tables.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "dofla/core/bytes.h"
#include "dofla/report/text.h"

namespace dofla {
namespace {

std::string text_label(const TextFidelity& text) {
  return text.name + (text.in_domain ? " (in domain)" : "");
}

std::string fixed(double value, int digits) {
  return fmt::format("{:.{}f}", value, digits);
}
std::string with_sign(double value, int digits) {
  return fmt::format("{:+.{}f}", value, digits);
}
std::string percent(double share) {
  return fmt::format("{:.1f} %", 100 * share);
}

// The same without its first column, which names the student, where there is only one.
ResultTable without_only_student(const FidelityReport& report, ResultTable table) {
  if (report.students.size() > 1) return table;
  table.label_names.erase(table.label_names.begin());
  for (TableRow& row : table.rows) row.labels.erase(row.labels.begin());
  return table;
}

// A row for every student and text, and one for all texts where there are several.
using Cells = std::vector<TableCell> (*)(const Divergence& divergence);
ResultTable by_text(const FidelityReport& report, const std::string& title,
                    const std::vector<std::string>& columns, Cells cells) {
  ResultTable table = {.title = title, .label_names = {"student", "text"}};
  for (const std::string& column : columns) table.columns.push_back({column, ""});
  for (const StudentFidelity& student : report.students) {
    for (const TextFidelity& text : student.texts)
      table.rows.push_back({{student.name, text_label(text)}, cells(text.divergence)});
    if (student.texts.size() > 1)
      table.rows.push_back({{student.name, "all, by tokens"}, cells(student.all)});
  }
  return without_only_student(report, std::move(table));
}

}  // namespace

std::string with_error(double value, double error) {
  return std::isnan(error) ? fixed(value, 4)
                           : fmt::format("{:.4f} ± {}", value, format_number(error, 2));
}

ResultTable losses_table(const FidelityReport& report) {
  return by_text(report, "Loss", {"tokens", "teacher", "student", "above", "perplexity ratio"},
                 [](const Divergence& d) -> std::vector<TableCell> {
                   return {{format_count(d.tokens)},
                           {fixed(d.teacher_loss, 4)},
                           {fixed(d.loss, 4)},
                           {with_error(d.added(), d.added_stderr)},
                           {fixed(d.perplexity_ratio(), 3)}};
                 });
}

ResultTable divergence_table(const FidelityReport& report) {
  return by_text(report, "Divergence: KL(teacher‖student), nats a token",
                 {"mean", "median", "90 %", "95 %", "99 %", "99.9 %", "largest"},
                 [](const Divergence& d) -> std::vector<TableCell> {
                   return {{with_error(d.kl, d.kl_stderr)},
                           {fixed(d.kl_median, 4)},
                           {fixed(d.kl_90, 3)},
                           {fixed(d.kl_95, 3)},
                           {fixed(d.kl_99, 3)},
                           {fixed(d.kl_999, 2)},
                           {fixed(d.kl_max, 2)}};
                 });
}

ResultTable agreement_table(const FidelityReport& report) {
  return by_text(report, "Agreement and calibration",
                 {"same likeliest token", "of the five likeliest", "Δp of the true token",
                  "its RMS", "entropy", "calibration error", "teacher's"},
                 [](const Divergence& d) -> std::vector<TableCell> {
                   return {{percent(d.same_top)},
                           {percent(d.top5_overlap)},
                           {with_sign(100 * d.p_change, 2) + " %"},
                           {fixed(100 * d.p_change_rms, 2) + " %"},
                           {with_sign(d.entropy_change, 3)},
                           {fixed(100 * d.calibration.error, 2) + " %"},
                           {fixed(100 * d.teacher_calibration.error, 2) + " %"}};
                 });
}

ResultTable slices_table(const FidelityReport& report, std::vector<Slice> WhereLost::*slices,
                         const std::string& title, const std::string& what) {
  ResultTable table = {.title = title, .label_names = {what}};
  table.columns.push_back({"tokens", ""});
  for (const StudentFidelity& student : report.students) {
    table.columns.push_back({"KL", student.name});
    table.columns.push_back({"share", student.name});
  }
  const std::vector<Slice>& first = report.students.front().where.*slices;
  for (size_t i = 0; i < first.size(); ++i) {
    TableRow row = {{first[i].name}, {{format_count(first[i].tokens)}}};
    for (const StudentFidelity& student : report.students) {
      const Slice& slice = (student.where.*slices).at(i);
      row.cells.push_back({format_number(slice.kl, 3)});
      row.cells.push_back({percent(slice.share)});
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

ResultTable controls_table(const FidelityReport& report) {
  ResultTable table = {.title = "Baselines in the memory of the student",
                       .label_names = {"student", "text", ""},
                       .columns = {{"above the teacher", ""}, {"memory", ""}}};
  const bool softmax = std::ranges::any_of(report.students, &StudentFidelity::is_softmax);
  for (const StudentFidelity& student : report.students)
    for (size_t t = 0; !student.is_softmax() && t < student.texts.size(); ++t) {
      const TextFidelity& text = student.texts[t];
      const TextControls& controls = text.controls;
      for (const std::string& note : notes(controls.controls, controls.student_loss))
        table.notes.push_back(student.name + ", " + text.name + ": " + note + ".");
      if (controls.controls.measured.empty() && !softmax) continue;
      const auto add = [&](const std::string& name, double loss, int64_t bytes, bool bold) {
        table.rows.push_back(
            {{student.name, text_label(text), name},
             {{with_sign(loss - controls.teacher_loss, 4), "", bold}, {with_bytes_unit(bytes)}}});
      };
      add("the student", controls.student_loss, student.cost.context_bytes, true);
      for (const Control& control : controls.controls.measured)
        add(describe(control), control.loss, control.state_bytes, false);
      for (const StudentFidelity& other : report.students)
        if (other.is_softmax())
          add(other.name + ", softmax attention", other.texts[t].controls.student_loss,
              other.cost.context_bytes, false);
    }
  return without_only_student(report, std::move(table));
}

ResultTable cost_table(const FidelityReport& report) {
  ResultTable table = {.title = "Cost", .label_names = {"model"}};
  for (const int64_t tokens : kCostLengths)
    table.columns.push_back({format_count(tokens) + " tokens", "memory of a sequence"});
  const std::string timed =
      fmt::format("tokens/s at {} tokens", format_count(report.teacher_cost.timed_tokens));
  table.columns.push_back({"prefill", timed});
  table.columns.push_back({"decode", timed});
  const auto add = [&](const std::string& name, const Cost& cost) {
    TableRow row = {{name}, {}};
    for (const int64_t bytes : cost.bytes) row.cells.push_back({with_bytes_unit(bytes)});
    row.cells.push_back({format_number(cost.prefill, 3)});
    row.cells.push_back({format_number(cost.decode, 3)});
    table.rows.push_back(std::move(row));
  };
  add(report.teacher + " (teacher)", report.teacher_cost);
  for (const StudentFidelity& student : report.students) add(student.name, student.cost);
  return table;
}

ResultTable verdict_table(const FidelityReport& report) {
  ResultTable table = {.title = "Verdict",
                       .label_names = {"student", "about", "finding"},
                       .columns = {{"grade", ""}}};
  for (const StudentFidelity& student : report.students) {
    table.rows.push_back({{student.name, "", student.verdict.headline},
                          {{std::string(name(student.verdict.grade)), "", true}}});
    for (const Finding& finding : student.verdict.findings)
      table.rows.push_back({{student.name, finding.about, finding.words},
                            {{finding.grade ? std::string(name(*finding.grade)) : ""}}});
  }
  return without_only_student(report, std::move(table));
}

}  // namespace dofla
