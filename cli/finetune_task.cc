#include <algorithm>

#include "cli/finetune.h"
#include "cli/task_results.h"
#include "dofla/evaluate/answers_json.h"
#include "dofla/evaluate/tasks.h"
#include "dofla/linear/linear_model.h"

namespace dofla::cli {
namespace {

struct Questions {
  std::string split;
  std::vector<EncodedQuestion> all;

  int64_t count() const { return static_cast<int64_t>(all.size()); }
  int64_t truncated() const { return std::ranges::count_if(all, &EncodedQuestion::truncated); }
};

OrderedJson to_json(const std::string& task, const Questions& train, const Finetuned& tuned) {
  const FinetuneResult& result = tuned.result;
  OrderedJson epochs = OrderedJson::array();
  for (size_t i = 0; i < result.epochs.size(); ++i) {
    epochs.push_back({{"loss", tuned.loss(i)}});
    epochs.back().update(to_json(result.epochs[i].answers));
  }
  return {{"task", task},
          {"train_questions", train.count()},
          {"train_truncated", train.truncated()},
          {"steps", result.loss.size()},
          {"skipped_steps", result.skipped()},
          {"before", to_json(result.before.answers)},
          {"epochs", std::move(epochs)},
          {"kept", result.kept},
          {"seconds", tuned.seconds}};
}

void print_table(const std::string& task, const FinetuneOptions& job, const Questions& train,
                 const Questions& judged, const Finetuned& tuned) {
  const FinetuneResult& result = tuned.result;
  const auto row = [](const std::string& epoch, const std::string& loss,
                      const TaskResult& answers) {
    print(fmt::format("{:<11} {:>8}  {:>14}  {:>14}\n", epoch, loss, percent(answers.acc),
                      percent(answers.acc_norm)));
  };
  print(fmt::format("{}: {} of {}, {} of {}, learning rate {:g}; accuracy on {} of {}\n", task,
                    counted(train.count(), "question"), train.split,
                    counted(static_cast<int64_t>(result.loss.size()), "step"), job.batch,
                    job.learning_rate, counted(judged.count(), "question"), judged.split));
  print(fmt::format("{:<11} {:>8}  {:>14}  {:>14}\n", "epoch", "loss", "acc", "acc_norm"));
  row(epoch_label(result, 0), "", result.before.answers);
  for (size_t i = 0; i < result.epochs.size(); ++i)
    row(epoch_label(result, static_cast<int64_t>(i) + 1), fmt::format("{:.4f}", tuned.loss(i)),
        result.epochs[i].answers);
  print_skipped(result);
}

}  // namespace

void FinetuneTask::add(CLI::App& app) {
  CLI::Option* task = app.add_option("--task", task_, task_names());
  task->type_name("NAME")->check(task_name());
  CLI::Option* data =
      app.add_option("--task-data", data_,
                     "folder of the tasks' folders (piqa, arc_easy, ...), or the\ntask's own");
  data->type_name("DIR")->needs(task);
  task->needs(data);
  add_number(app, "--limit", limit_, "train on N questions, evenly spread (left out: all)", "N",
             whole_from(1))
      ->needs(task);
  add_number(app, "--evaluate-limit", evaluate_limit_,
             "judge by N questions, evenly spread (left out: all)", "N", whole_from(1))
      ->needs(task);
}

void FinetuneTask::run(const FinetuneArguments& arguments) const {
  FinetuneOptions job = arguments.complete(paper_finetune_options(task_));
  const Task& task = find_task(task_);
  const auto read = [&](const std::string& split, int64_t limit) {
    return evenly_spread(read_questions(task, find_split(task, split), data_), limit);
  };
  // Both files are read before anything long starts.
  const std::vector<Question> to_train = read(task.trained, limit_);
  const std::vector<Question> to_judge = read(task.evaluated, evaluate_limit_);
  const Checkpoint checkpoint(arguments.model.folder());
  const Tokenizer tokenizer = Tokenizer::load(checkpoint.folder());
  Transformer model = load_model(checkpoint, arguments.device.get(arguments.group), DType::kF32);
  const Encode encode = [&](std::string_view text) { return tokenizer.encode(text, false); };
  const Questions train = {task.trained, encode_questions(to_train, encode, model.config())};
  const Questions judged = {task.evaluated, encode_questions(to_judge, encode, model.config())};
  require_finite_scores(model, judged.all.front());
  job.run = {{"task", task.name},
             {"split", train.split},
             {"evaluated", judged.split},
             {"evaluated_questions", judged.count()}};
  const MakeJudge judge = [&](const Progress& progress) {
    return [&judged, progress](const Transformer& now) {
      const TaskResult answers = evaluate_task(now, judged.all, progress);
      return Judgement{answers.acc.mean, answers};
    };
  };
  const Finetuned tuned =
      finetune_and_write(arguments, checkpoint, model, lessons_of(train.all), job, {data_}, judge);
  const int64_t context = model.config().context;
  remark_on_truncated(fmt::format("{}, {}", task.name, train.split), train.truncated(), context);
  remark_on(fmt::format("{}, {}", task.name, judged.split), tuned.result.kept_judgement().answers,
            context);
  if (arguments.json) return print_json(to_json(task_, train, tuned));
  print_table(task_, job, train, judged, tuned);
  remark_on_kept(arguments, tuned);
}

}  // namespace dofla::cli
