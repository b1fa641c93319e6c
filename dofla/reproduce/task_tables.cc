// Accuracy on tasks.
#include <cmath>

#include "dofla/reproduce/published.h"
#include "dofla/reproduce/table_parts.h"
#include "dofla/reproduce/tables.h"
#include "dofla/reproduce/task_runs.h"

namespace dofla {
namespace {

constexpr int kDecimals = 4;  // as the paper prints them

using TaskFigure = std::function<std::optional<double>(const std::string& task)>;

TableCell accuracy_cell(const Accuracy& accuracy) {
  TableCell cell = number_cell(accuracy.mean, kDecimals);
  if (std::isfinite(accuracy.standard_error))
    cell.aside = fmt::format("± {:.{}f}", accuracy.standard_error, kDecimals);
  return cell;
}

// The mean over the tasks, where there is a figure for every one.
TableCell average(const std::vector<std::string>& tasks, const TaskFigure& figure) {
  double sum = 0;
  for (const std::string& task : tasks) {
    const auto value = figure(task);
    if (!value) return dash();
    sum += *value;
  }
  return number_cell(sum / static_cast<double>(tasks.size()), kDecimals);
}

// One model's row of our accuracies. `student` may be nullptr: the teacher.
std::vector<TableCell> our_cells(const RunFolder& folder, const std::vector<std::string>& tasks,
                                 const Student* student, bool finetuned) {
  const auto read = [&](const std::string& task) -> std::optional<Accuracy> {
    const auto result = if_recorded([&] { return read_task(folder, task, student); });
    if (!result) return std::nullopt;
    return finetuned ? result->finetuned : result->zero_shot;
  };
  std::vector<TableCell> cells;
  for (const std::string& task : tasks) {
    const auto accuracy = read(task);
    cells.push_back(accuracy ? accuracy_cell(*accuracy) : dash());
  }
  cells.push_back(average(tasks, [&](const std::string& task) -> std::optional<double> {
    const auto accuracy = read(task);
    return accuracy ? std::optional(accuracy->mean) : std::nullopt;
  }));
  return cells;
}

void add_published(const std::vector<std::string>& tasks, const TaskFigure& figure, TableRow& row) {
  for (const std::string& task : tasks) row.cells.push_back(number_cell(figure(task), kDecimals));
  row.cells.push_back(average(tasks, figure));
}

std::optional<double> published_accuracy(const Student& student, const std::string& task) {
  return !student.baseline() ? published::accuracy(student.strategy, student.loss.value(), task)
                             : published::baseline_accuracy(student.map, task);
}

TableRow guessing_row(const RunFolder& folder, const std::vector<std::string>& tasks) {
  TableRow row = {{"", "guessing"}, {}};
  const TaskFigure figure = [&](const std::string& task) -> std::optional<double> {
    const auto result = if_recorded([&] { return read_task(folder, task, nullptr); });
    return result ? std::optional(result->chance) : std::nullopt;
  };
  add_published(tasks, figure, row);
  return row;
}

}  // namespace

ResultTable task_table(const Study& study, const RunFolder& folder, int64_t cost, bool finetuned) {
  const std::vector<std::string>& tasks = study.suite.tasks->names;
  ResultTable table = {
      .title = fmt::format("Accuracy at cost {}, {}", cost, finetuned ? "fine-tuned" : "zero-shot"),
      .label_names = {"strategy", "method"},
      .columns = {},
      .rows = {},
      .notes = {}};
  const auto add_columns = [&](const std::string& group) {
    for (const std::string& task : tasks) table.columns.push_back({task, group});
    table.columns.push_back({"average", group});
  };
  add_columns(study.teacher_name);
  if (finetuned) add_columns(kPaper);

  table.rows.push_back(guessing_row(folder, tasks));
  const auto add_row = [&](const std::string& strategy, const std::string& method,
                           const Student* student, const TaskFigure& published) {
    TableRow row = {{strategy, method}, our_cells(folder, tasks, student, finetuned)};
    if (finetuned) add_published(tasks, published, row);
    table.rows.push_back(std::move(row));
  };
  add_row("", "teacher", nullptr, published::teacher_accuracy);
  for (const Student& student : answering_students(study.suite)) {
    if (student.cost != cost) continue;
    const bool baseline = student.baseline();
    add_row(baseline ? "" : title_of(student.strategy),
            baseline ? title_of(student.map) : std::string(student.loss_or_map()), &student,
            [&](const std::string& task) { return published_accuracy(student, task); });
  }
  table.notes.push_back(fmt::format(
      "Share of right answers (the candidate with the highest log-likelihood) ± its standard "
      "error, students of seed {}.{}",
      study.suite.seeds.front(),
      finetuned ? " Of several epochs the best one, as in the paper, whose figures are those of "
                  "its Table 3."
                : " The paper has no zero-shot accuracies."));
  return table;
}

}  // namespace dofla
