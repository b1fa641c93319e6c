#include "cli/finetune.h"
#include "cli/progress_bar.h"
#include "cli/task_results.h"
#include "dofla/evaluate/answers_json.h"

namespace dofla::cli {
namespace {

OrderedJson to_json(const FinetuneQuestions& questions, const Finetuned& tuned) {
  const FinetuneResult& result = tuned.result;
  OrderedJson epochs = OrderedJson::array();
  for (size_t i = 0; i < result.epochs.size(); ++i) {
    epochs.push_back({{"loss", result.epoch_loss(i)}});
    epochs.back().update(to_json(result.epochs[i].answers));
  }
  return {{"task", questions.task->name},
          {"train_questions", questions.train.size()},
          {"train_truncated", tuned.truncated},
          {"steps", result.loss.size()},
          {"skipped_steps", result.skipped()},
          {"before", to_json(result.before.answers)},
          {"epochs", std::move(epochs)},
          {"kept", result.kept},
          {"seconds", tuned.seconds}};
}

void print_table(const FinetuneQuestions& questions, const FinetuneOptions& job,
                 const Finetuned& tuned) {
  const FinetuneResult& result = tuned.result;
  const auto row = [](const std::string& epoch, const std::string& loss,
                      const TaskResult& answers) {
    print(fmt::format("{:<11} {:>8}  {:>14}  {:>14}\n", epoch, loss, percent(answers.acc),
                      percent(answers.acc_norm)));
  };
  const Task& task = *questions.task;
  print(fmt::format("{}: {} of {}, {} of {}, learning rate {:g}; accuracy on {} of {}\n", task.name,
                    counted(std::ssize(questions.train), "question"), task.trained,
                    counted(std::ssize(result.loss), "step"), job.batch, job.learning_rate,
                    counted(std::ssize(questions.judged), "question"), task.evaluated));
  print(fmt::format("{:<11} {:>8}  {:>14}  {:>14}\n", "epoch", "loss", "acc", "acc_norm"));
  row(epoch_label(result, 0), "", result.before.answers);
  for (size_t i = 0; i < result.epochs.size(); ++i)
    row(epoch_label(result, static_cast<int64_t>(i) + 1),
        fmt::format("{:.4f}", result.epoch_loss(i)), result.epochs[i].answers);
  print_skipped(result);
}

}  // namespace

void FinetuneTask::add(CLI::App& app) {
  const HelpSection section(app, "Task");
  CLI::Option* task = app.add_option("--task", task_, task_names());
  task->type_name("NAME")->check(task_name());
  CLI::Option* data =
      app.add_option("--task-data", data_,
                     "folder of the tasks' folders (piqa, arc_easy, ...), or the\ntask's own");
  data->type_name("DIR")->needs(task);
  task->needs(data);
  add_number(app, "--limit", limit_, "train on N questions, evenly spread (default: all)", "N",
             whole_from(1))
      ->needs(task);
  add_number(app, "--evaluate-limit", evaluate_limit_,
             "judge by N questions, evenly spread (default: all)", "N", whole_from(1))
      ->needs(task);
}

void FinetuneTask::run(const FinetuneArguments& arguments) const {
  const FinetuneOptions job = arguments.complete(paper_finetune_options(task_));
  // Both files are read before anything long starts.
  const FinetuneQuestions questions =
      read_finetune_questions(find_task(task_), data_, limit_, evaluate_limit_);
  const Checkpoint checkpoint(arguments.model.folder());
  std::optional<Finetuned> tuned;
  {
    ProgressBar bar(arguments.stop);
    tuned = finetune_on_task(checkpoint, questions, arguments.device.get(arguments.group), job,
                             arguments.training.logged(arguments.group, bar.progress()));
  }
  if (!arguments.group.is_first()) return;
  write_model(arguments, checkpoint, *tuned, {data_});
  const Task& task = *questions.task;
  const int64_t context = checkpoint.config().context;
  remark_on_truncated(fmt::format("{}, {}", task.name, task.trained), tuned->truncated, context);
  remark_on(fmt::format("{}, {}", task.name, task.evaluated),
            tuned->result.kept_judgement().answers, context);
  if (arguments.json) return print_json(to_json(questions, *tuned));
  print_table(questions, job, *tuned);
  remark_on_kept(arguments, *tuned);
}

}  // namespace dofla::cli
