#include "cli/evaluate_tasks.h"

#include <chrono>

#include "cli/choice_option.h"
#include "cli/command.h"
#include "cli/output.h"
#include "cli/progress_bar.h"
#include "cli/task_results.h"
#include "dofla/core/error.h"
#include "dofla/evaluate/answers_json.h"
#include "dofla/evaluate/tasks.h"
#include "dofla/linear/linear_model.h"

namespace dofla::cli {
namespace {

struct Evaluated {
  const Task* task = nullptr;
  const TaskSplit* split = nullptr;
  std::vector<Question> questions;
  TaskResult result;
  std::optional<LetteredResult> lettered;  // instead
};

OrderedJson to_json(const Evaluated& entry) {
  OrderedJson json = {{"task", entry.task->name}, {"split", entry.split->name}};
  json.update(entry.lettered ? to_json(*entry.lettered) : to_json(entry.result));
  return json;
}

// A question that is right with this probability by guessing.
double chance(const std::vector<Question>& questions) {
  double sum = 0;
  for (const Question& question : questions) sum += 1 / static_cast<double>(question.candidates());
  return sum / static_cast<double>(questions.size());
}

void print_table(const std::vector<Evaluated>& evaluated) {
  print(fmt::format("{:<14} {:<11} {:>9}  {:>14}  {:>14}  {:>6}\n", "task", "split", "questions",
                    "acc", "acc_norm", "chance"));
  for (const Evaluated& entry : evaluated)
    print(fmt::format("{:<14} {:<11} {:>9}  {:>14}  {:>14}  {:>4.0f} %\n", entry.task->name,
                      entry.split->name, grouped(entry.result.questions), percent(entry.result.acc),
                      percent(entry.result.acc_norm), 100 * chance(entry.questions)));
}

void print_letters_table(const std::vector<Evaluated>& evaluated) {
  print(fmt::format("{:<14} {:<11} {:>9}  {:>14}  {:>14}  {:>11}  {:>10}  {:>6}\n", "task", "split",
                    "questions", "acc", "as published", "same option", "unanswered", "chance"));
  for (const Evaluated& entry : evaluated) {
    const LetteredResult& result = *entry.lettered;
    print(fmt::format(
        "{:<14} {:<11} {:>9}  {:>14}  {:>14}  {:>9.1f} %  {:>8.1f} %  {:>4.0f} %\n",
        entry.task->name, entry.split->name, grouped(result.questions), percent(result.acc),
        percent(result.as_published), 100 * result.same_option,
        100 * static_cast<double>(result.unanswered) / static_cast<double>(result.asked),
        100 * result.chance));
  }
}

void require_options(const Evaluated& entry) {
  for (const Question& question : entry.questions)
    if (question.options.empty())
      fail(
          "{}: has no labelled options to ask for by letters; docs/tasks.md lists the tasks that "
          "do",
          entry.task->name);
}

}  // namespace

void TaskArguments::add(CLI::App& app) {
  CLI::Option* task = app.add_option(
      "--task", names_,
      fmt::format("answer the questions of this task instead, may be repeated:\n{}", task_names()));
  task->type_name("NAME")->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  task->check(task_name());
  CLI::Option* data = app.add_option("--task-data", data_,
                                     "folder of the tasks' folders (piqa, arc_easy, ...), or the\n"
                                     "task's own");
  data->type_name("DIR")->needs(task);
  task->needs(data);
  for (const char* other : {"--data", "--ids", "--length", "--sequences", "--teacher"})
    task->excludes(app.get_option(other));
  app.add_option("--split", split_, "questions to take (left out: those published figures are of)")
      ->type_name("NAME")
      ->needs(task);
  app.add_option("--limit", limit_, "take N questions, evenly spread (left out: all)")
      ->type_name("N")
      ->check(whole_from(1))
      ->needs(task);
  add_choice(app, "--letters", letters_,
             "show the options behind letters, in every rotation, and take the\n"
             "likeliest letter, or the one that the model writes")
      ->needs(task);
}

void TaskArguments::run(const fs::path& model_folder, const Device& device, bool json) const {
  // All files are read first: a defect in the last one must not show after an hour.
  std::vector<Evaluated> evaluated;
  for (const std::string& name : names_) {
    const Task& task = find_task(name);
    const TaskSplit& split = find_split(task, split_.empty() ? task.evaluated : split_);
    evaluated.push_back(
        {&task, &split, evenly_spread(read_questions(task, split, data_), limit_), {}, {}});
    if (letters_) require_options(evaluated.back());
  }
  const Checkpoint checkpoint(model_folder);
  const Tokenizer tokenizer = Tokenizer::load(checkpoint.folder());
  const Transformer model = load_model(checkpoint, device);
  const Encode encode = [&](std::string_view text) { return tokenizer.encode(text, false); };
  const auto start = std::chrono::steady_clock::now();
  int64_t questions = 0;
  for (Evaluated& entry : evaluated) {
    ProgressBar bar;
    const Progress draw = bar.progress();
    const auto show = [&](ProgressUpdate update) {
      update.stage = entry.task->name;
      draw.tell(update);
    };
    questions += std::ssize(entry.questions);
    if (letters_) {
      entry.lettered = evaluate_letters(model, tokenizer, entry.questions, *letters_, show);
      continue;
    }
    const auto encoded = encode_questions(entry.questions, encode, model.config());
    entry.result = evaluate_task(model, encoded, show);
    if (entry.result.not_finite == entry.result.questions)
      require_finite_scores(model, encoded.front());
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  checkpoint.require_unchanged();

  for (const Evaluated& entry : evaluated)
    if (entry.lettered)
      remark_on_truncated(entry.task->name, entry.lettered->truncated, model.config().context);
    else
      remark_on(entry.task->name, entry.result, model.config().context);
  if (json) {
    OrderedJson results = OrderedJson::array();
    for (const Evaluated& entry : evaluated) results.push_back(to_json(entry));
    return print_json({{"tasks", std::move(results)}});
  }
  letters_ ? print_letters_table(evaluated) : print_table(evaluated);
  remark(fmt::format("{:.1f} s, {:.1f} questions/s", seconds,
                     static_cast<double>(questions) / seconds));
}

}  // namespace dofla::cli
