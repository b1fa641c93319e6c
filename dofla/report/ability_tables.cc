#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "dofla/report/fidelity_tables.h"
#include "dofla/report/text.h"

namespace dofla {
namespace {

std::string share_text(double share) {
  return fmt::format("{:.1f} %", 100 * share);
}
TableCell share_cell(const Accuracy& accuracy) {
  return {.text = share_text(accuracy.mean),
          .aside = std::isnan(accuracy.standard_error)
                       ? ""
                       : fmt::format("± {:.1f}", 100 * accuracy.standard_error)};
}

// One column for the teacher, each student, and guessing.
ResultTable of_models(const FidelityReport& report, const std::string& title,
                      const std::string& what) {
  ResultTable table = {.title = title, .label_names = {what}};
  table.columns.push_back({"teacher", ""});
  for (const StudentFidelity& student : report.students)
    table.columns.push_back({student.name, ""});
  table.columns.push_back({"guessing", ""});
  return table;
}

std::vector<const Abilities*> all_abilities(const FidelityReport& report) {
  std::vector<const Abilities*> all = {&report.teacher_abilities};
  for (const StudentFidelity& student : report.students) all.push_back(&student.abilities);
  return all;
}

// A row for each of what any model has a result of. `rows_of` finds the results of a model, `label`
// names one (the same for the same question), `share` is what it got right.
template <class RowsOf, class Label, class Share>
void add_rows(const FidelityReport& report, const RowsOf& rows_of, const Label& label,
              const Share& share, ResultTable& table) {
  std::vector<std::string> labels;
  for (const Abilities* abilities : all_abilities(report))
    for (const auto& row : rows_of(*abilities))
      if (std::ranges::find(labels, label(row)) == labels.end()) labels.push_back(label(row));
  for (const std::string& wanted : labels) {
    TableRow line = {{wanted}, {}};
    double chance = 0;
    for (const Abilities* abilities : all_abilities(report)) {
      const auto& rows = rows_of(*abilities);
      const auto found =
          std::ranges::find_if(rows, [&](const auto& row) { return label(row) == wanted; });
      line.cells.push_back({found == rows.end() ? "–" : share_text(share(*found))});
      if (found != rows.end()) chance = found->chance;
    }
    line.cells.push_back({share_text(chance)});
    table.rows.push_back(std::move(line));
  }
}

const auto kExact = [](const auto& row) {
  return static_cast<double>(row.exact) / static_cast<double>(row.questions);
};

}  // namespace

ResultTable recall_table(const FidelityReport& report) {
  ResultTable table = of_models(report, "Recall: right answers, by generation", "asked for");
  add_rows(
      report, [](const Abilities& a) -> const auto& { return a.recall.recall; },
      [](const RecallResult& row) {
        return fmt::format("a number, {} tokens ago among others", format_count(row.distance));
      },
      kExact, table);
  add_rows(
      report, [](const Abilities& a) -> const auto& { return a.recall.needle; },
      [](const NeedleResult& row) {
        return fmt::format("a number in {} tokens, at {:.0f} % of them", format_count(row.length),
                           100 * row.depth);
      },
      kExact, table);
  add_rows(
      report, [](const Abilities& a) -> const auto& { return a.recall.induction; },
      [](const InductionResult& row) {
        return fmt::format("{} random tokens again", format_count(row.distance));
      },
      [](const InductionResult& row) { return row.accuracy; }, table);
  return table;
}

ResultTable answers_table(const FidelityReport& report) {
  ResultTable table = of_models(report, "Words and answers", "asked");
  const std::vector<const Abilities*> all = all_abilities(report);
  const auto add = [&](const std::string& label, const auto& cell, const std::string& chance) {
    TableRow line = {{label}, {}};
    for (const Abilities* abilities : all) line.cells.push_back(cell(*abilities));
    line.cells.push_back({chance});
    table.rows.push_back(std::move(line));
  };
  if (report.teacher_abilities.last_words) {
    add(
        "the last word", [](const Abilities& a) { return share_cell(a.last_words->acc); }, "");
    add(
        "its perplexity",
        [](const Abilities& a) { return TableCell{format_number(a.last_words->perplexity, 3)}; },
        "");
  }
  for (size_t i = 0; i < report.teacher_abilities.tasks.size(); ++i) {
    const TaskAbility& task = report.teacher_abilities.tasks[i];
    add(
        task.task + ", likeliest answer",
        [&](const Abilities& a) { return share_cell(a.tasks[i].result.acc); },
        share_text(task.chance));
    if (!task.generated) continue;
    const std::string chance = share_text(task.generated->chance);
    add(
        task.task + ", likeliest letter",
        [&](const Abilities& a) { return share_cell(a.tasks[i].by_letter->acc); }, chance);
    add(
        task.task + ", written letter",
        [&](const Abilities& a) { return share_cell(a.tasks[i].generated->acc); }, chance);
  }
  if (std::ranges::any_of(report.students,
                          [](const StudentFidelity& one) { return one.agreement.has_value(); })) {
    TableRow line = {{"tokens of greedy text before it differs, median"}, {{""}}};
    for (const StudentFidelity& student : report.students)
      line.cells.push_back(
          {student.agreement
               ? fmt::format("{:.0f} of {}", student.agreement->median, student.agreement->tokens)
               : "–"});
    table.rows.push_back(std::move(line));
  }
  return table;
}

ResultTable yardsticks_table(const FidelityReport& report) {
  ResultTable table = {
      .title = "Yardsticks: the teacher with its weights rounded",
      .label_names = {"weights", "text"},
      .columns = {
          {"above the teacher", ""}, {"KL", ""}, {"99 %", ""}, {"same likeliest token", ""}}};
  for (const Yardstick& yardstick : report.yardsticks)
    for (size_t t = 0; t < yardstick.texts.size(); ++t) {
      const Divergence& d = yardstick.texts[t];
      table.rows.push_back({{yardstick.name, report.students.front().texts[t].name},
                            {{fmt::format("{:+.4f}", d.added())},
                             {with_error(d.kl, d.kl_stderr)},
                             {fmt::format("{:.3f}", d.kl_99)},
                             {share_text(d.same_top)}}});
    }
  return table;
}

}  // namespace dofla
