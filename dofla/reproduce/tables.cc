#include "dofla/reproduce/tables.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "dofla/core/version.h"
#include "dofla/report/text.h"
#include "dofla/reproduce/table_parts.h"

namespace dofla {
namespace {

ResultTable failure_table(const std::vector<RunRecord>& failed) {
  ResultTable table = {.title = "Runs that failed",
                       .label_names = {"run", "error"},
                       .columns = {},
                       .rows = {},
                       .notes = {"They are tried again when the command is repeated."}};
  for (const RunRecord& record : failed) table.rows.push_back({{record.name, record.error}, {}});
  return table;
}

// Whether there is anything to compare seed by seed.
bool has_pairs(const Suite& suite) {
  const auto fix = std::ranges::find(suite.strategies, PlanStrategy::kFix);
  return fix != suite.strategies.end() && suite.strategies.size() > 1 && !suite.losses.empty();
}

std::vector<std::pair<std::string, std::string>> facts(const Study& study) {
  const Suite& suite = study.suite;
  std::vector<std::string> data;
  for (const fs::path& file : suite.data) data.push_back(file.filename().string());
  return {{"teacher", study.teacher_line()},
          {"text", fmt::format("{}; {} windows of {} tokens to train on, {} held out",
                               fmt::join(data, ", "), study.text.train.size(),
                               study.text.train.length(), study.text.held_out.size())},
          {"costs", fmt::format("{}", fmt::join(suite.costs, ", "))},
          {"seeds", fmt::format("{}", fmt::join(suite.seeds, ", "))},
          {"features",
           fmt::format("{}, {} coordinates", name(suite.features), name(suite.coordinates))},
          {"training", fmt::format("{} steps of {} windows, features started by {}, {} pairs",
                                   suite.steps, suite.batch, name(suite.init),
                                   suite.mask == PairMask::kFull ? "all" : "causal")},
          {"degrees of freedom",
           fmt::format("λ = {}, {} samples, {} draws, {} windows, Gram matrix divided by {}; power "
                       "{} by head",
                       format_lambda(suite.dof.lambda), suite.dof.samples, suite.dof.draws,
                       suite.dof_sequences, name(suite.dof.gram), suite.power)},
          {"device", study.device.description()}};
}

}  // namespace

TablesPage make_tables(const Study& study, const RunFolder& folder,
                       const std::vector<RunRecord>& failed) {
  const Suite& suite = study.suite;
  TablesPage page = {
      .title = "The paper's tables on " + study.teacher_name,
      .about = fmt::format(
          "Teacher: {}. The paper's figures are those of GPT-2: another model, on another text.",
          study.teacher_line()),
      .facts = facts(study),
      .tables = {},
      .version = std::string(version())};
  const auto for_every_cost = [&](const auto& make) {
    for (const int64_t cost : suite.costs) page.tables.push_back(make(study, folder, cost));
  };
  if (!suite.strategies.empty()) for_every_cost(dimension_table);
  page.tables.push_back(head_table(study, folder));
  if (!suite.strategies.empty() && !suite.losses.empty()) for_every_cost(loss_table);
  if (has_pairs(suite)) for_every_cost(paired_table);
  for_every_cost(baseline_table);
  if (suite.equal_time) for_every_cost(equal_time_table);
  if (suite.tasks && !suite.tasks->data.empty())
    for (const int64_t cost : suite.costs) {
      page.tables.push_back(task_table(study, folder, cost, false));
      if (suite.tasks->finetune) page.tables.push_back(task_table(study, folder, cost, true));
    }
  if (!suite.timing.empty()) {
    for_every_cost(inference_table);
    if (!suite.losses.empty()) for_every_cost(training_time_table);
  }
  if (!failed.empty()) page.tables.push_back(failure_table(failed));
  return page;
}

}  // namespace dofla
