#include "cli/evaluate_tasks.h"

#include "cli/choice_option.h"
#include "cli/command.h"
#include "cli/output.h"
#include "cli/progress_bar.h"
#include "cli/task_results.h"
#include "dofla/evaluate/answers_json.h"

namespace dofla::cli {
namespace {

OrderedJson to_json(const TaskEvaluation& entry) {
  OrderedJson json = {{"task", entry.task->name}, {"split", entry.split->name}};
  json.update(entry.lettered ? to_json(*entry.lettered) : to_json(entry.result));
  return json;
}

void print_table(const std::vector<TaskEvaluation>& evaluated) {
  print(fmt::format("{:<14} {:<11} {:>9}  {:>14}  {:>14}  {:>6}\n", "task", "split", "questions",
                    "acc", "acc_norm", "chance"));
  for (const TaskEvaluation& entry : evaluated)
    print(fmt::format("{:<14} {:<11} {:>9}  {:>14}  {:>14}  {:>4.0f} %\n", entry.task->name,
                      entry.split->name, grouped(entry.result.questions), percent(entry.result.acc),
                      percent(entry.result.acc_norm), 100 * entry.chance));
}

void print_letters_table(const std::vector<TaskEvaluation>& evaluated) {
  print(fmt::format("{:<14} {:<11} {:>9}  {:>14}  {:>14}  {:>11}  {:>10}  {:>6}\n", "task", "split",
                    "questions", "acc", "as published", "same option", "unanswered", "chance"));
  for (const TaskEvaluation& entry : evaluated) {
    const LetteredResult& result = *entry.lettered;
    print(fmt::format(
        "{:<14} {:<11} {:>9}  {:>14}  {:>14}  {:>9.1f} %  {:>8.1f} %  {:>4.0f} %\n",
        entry.task->name, entry.split->name, grouped(result.questions), percent(result.acc),
        percent(result.as_published), 100 * result.same_option,
        100 * static_cast<double>(result.unanswered) / static_cast<double>(result.asked),
        100 * result.chance));
  }
}

}  // namespace

void TaskArguments::add(CLI::App& app) {
  CLI::Option* task = app.add_option(
      "--task", selection_.names,
      fmt::format("answer the questions of this task instead, may be repeated:\n{}", task_names()));
  task->type_name("NAME")->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  task->check(task_name());
  CLI::Option* data = app.add_option("--task-data", selection_.data,
                                     "folder of the tasks' folders (piqa, arc_easy, ...), or the\n"
                                     "task's own");
  data->type_name("DIR")->needs(task);
  task->needs(data);
  for (const char* other : {"--data", "--ids", "--length", "--sequences", "--teacher"})
    task->excludes(app.get_option(other));
  app.add_option("--split", selection_.split,
                 "questions to take (left out: those published figures are of)")
      ->type_name("NAME")
      ->needs(task);
  app.add_option("--limit", selection_.limit, "take N questions, evenly spread (left out: all)")
      ->type_name("N")
      ->check(whole_from(1))
      ->needs(task);
  add_choice(app, "--letters", selection_.letters,
             "show the options behind letters, in every rotation, and take the\n"
             "likeliest letter, or the one that the model writes")
      ->needs(task);
}

void TaskArguments::run(const fs::path& model_folder, const Device& device, bool json,
                        const Group& group) const {
  TaskEvaluations found;
  {
    ProgressBar bar;
    found = evaluate_tasks(model_folder, selection_, device, bar.progress(), group);
  }
  if (!group.is_first()) return;
  const int64_t context = Checkpoint(model_folder).config().context;
  for (const TaskEvaluation& entry : found.tasks)
    if (entry.lettered)
      remark_on_truncated(entry.task->name, entry.lettered->truncated, context);
    else
      remark_on(entry.task->name, entry.result, context);
  if (json) {
    OrderedJson results = OrderedJson::array();
    for (const TaskEvaluation& entry : found.tasks) results.push_back(to_json(entry));
    return print_json({{"tasks", std::move(results)}});
  }
  selection_.letters ? print_letters_table(found.tasks) : print_table(found.tasks);
  remark(fmt::format("{:.1f} s, {:.1f} questions/s", found.seconds,
                     static_cast<double>(found.questions) / found.seconds));
}

}  // namespace dofla::cli
