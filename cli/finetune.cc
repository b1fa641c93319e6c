#include "dofla/train/finetune.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>

#include "cli/command.h"
#include "cli/device_option.h"
#include "cli/output.h"
#include "cli/progress_bar.h"
#include "cli/task_results.h"
#include "cli/training_run.h"
#include "dofla/core/error.h"
#include "dofla/evaluate/tasks.h"
#include "dofla/linear/linear_model.h"

namespace dofla::cli {
namespace {

struct Options {
  ModelArgument model;
  DeviceOption device;
  TrainingRun training;
  std::string task, data;
  std::optional<int64_t> epochs, batch;
  std::optional<double> learning_rate;
  int64_t limit = 0, evaluate_limit = 0;  // 0: all questions
  FinetuneOptions job;
  bool json = false;
};

struct Questions {
  std::string split;
  std::vector<EncodedQuestion> all;

  int64_t count() const { return static_cast<int64_t>(all.size()); }
  int64_t truncated() const { return std::ranges::count_if(all, &EncodedQuestion::truncated); }
};

// The options as given, and the paper's for the task where they are not.
FinetuneOptions complete(const Options& options) {
  FinetuneOptions job = options.job;
  const FinetuneOptions paper = paper_finetune_options(options.task);
  job.epochs = options.epochs.value_or(paper.epochs);
  job.batch = options.batch.value_or(paper.batch);
  job.learning_rate = options.learning_rate.value_or(paper.learning_rate);
  job.keep_best = paper.keep_best;
  options.training.set(job);
  return job;
}

// The mean loss of the steps of an epoch, without those that were skipped.
double epoch_loss(const FinetuneResult& result, size_t epoch) {
  const size_t steps = result.loss.size() / result.epochs.size();
  double sum = 0;
  int64_t taken = 0;
  for (size_t i = epoch * steps; i < (epoch + 1) * steps; ++i)
    if (!std::isnan(result.loss[i])) {
      sum += result.loss[i];
      ++taken;
    }
  return sum / static_cast<double>(taken);
}

OrderedJson to_json(const Options& options, const Questions& train, const FinetuneResult& result,
                    double seconds) {
  OrderedJson epochs = OrderedJson::array();
  for (size_t i = 0; i < result.epochs.size(); ++i) {
    epochs.push_back({{"loss", epoch_loss(result, i)}});
    epochs.back().update(accuracy_json(result.epochs[i]));
  }
  return {{"task", options.task},
          {"train_questions", train.count()},
          {"train_truncated", train.truncated()},
          {"steps", result.loss.size()},
          {"skipped_steps", result.skipped()},
          {"before", accuracy_json(result.before)},
          {"epochs", std::move(epochs)},
          {"kept", result.kept + 1},
          {"seconds", seconds}};
}

void print_table(const Options& options, const FinetuneOptions& job, const Questions& train,
                 const Questions& judged, const FinetuneResult& result) {
  print(fmt::format("{}: {} of {}, {} of {}, learning rate {:g}; accuracy on {} of {}\n",
                    options.task, counted(train.count(), "question"), train.split,
                    counted(static_cast<int64_t>(result.loss.size()), "step"), job.batch,
                    job.learning_rate, counted(judged.count(), "question"), judged.split));
  print(fmt::format("{:<10} {:>8}  {:>14}  {:>14}\n", "epoch", "loss", "acc", "acc_norm"));
  print(fmt::format("{:<10} {:>8}  {:>14}  {:>14}\n", "before", "", percent(result.before.acc),
                    percent(result.before.acc_norm)));
  for (size_t i = 0; i < result.epochs.size(); ++i)
    print(fmt::format(
        "{:<10} {:>8.4f}  {:>14}  {:>14}\n",
        fmt::format("{}{}", i + 1, static_cast<int64_t>(i) == result.kept ? " kept" : ""),
        epoch_loss(result, i), percent(result.epochs[i].acc), percent(result.epochs[i].acc_norm)));
  if (result.skipped() > 0)
    print(fmt::format("skipped    {} that were not finite\n", counted(result.skipped(), "step")));
}

void run(const Options& options) {
  const auto start = std::chrono::steady_clock::now();
  FinetuneOptions job = complete(options);
  options.training.check_places();
  const Task& task = find_task(options.task);
  const auto read = [&](const std::string& split, int64_t limit) {
    return evenly_spread(read_questions(task, find_split(task, split), options.data), limit);
  };
  // Both files are read before anything long starts.
  const std::vector<Question> to_train = read(task.trained, options.limit);
  const std::vector<Question> to_judge = read(task.evaluated, options.evaluate_limit);
  const Checkpoint checkpoint(options.model.folder());
  const Tokenizer tokenizer = Tokenizer::load(checkpoint.folder());
  // In F32 on a GPU too: BF16 weights would not show steps of 1e-6.
  Transformer model = load_model(checkpoint, options.device.get(), DType::kF32);
  const Encode encode = [&](std::string_view text) { return tokenizer.encode(text, false); };
  const Questions train = {task.trained, encode_questions(to_train, encode, model.config())};
  const Questions judged = {task.evaluated, encode_questions(to_judge, encode, model.config())};
  job.run = {{"task", task.name},
             {"split", train.split},
             {"evaluated", judged.split},
             {"evaluated_questions", judged.count()}};
  FinetuneResult result;
  {
    ProgressBar bar;
    const Progress draw = bar.progress();
    const Judge judge = [&](const Transformer& now) {
      return evaluate_task(now, judged.all, draw);
    };
    result = finetune(model, train.all, job, judge, draw);
  }
  NewFolder out(options.training.out());
  write_trained_model(out.path(), checkpoint, model, result.run);
  out.commit();
  fs::remove(job.checkpoint);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const int64_t context = model.config().context;
  remark_on_truncated(fmt::format("{}, {}", task.name, train.split), train.truncated(), context);
  remark_on(fmt::format("{}, {}", task.name, judged.split),
            result.epochs[static_cast<size_t>(result.kept)], context);
  if (options.json) return print_json(to_json(options, train, result, seconds));
  print_table(options, job, train, judged, result);
  remark(fmt::format("{}: the model of epoch {}; {:.0f} s", options.training.out(), result.kept + 1,
                     seconds));
}

// The paper's settings, a line a task.
std::string paper_table() {
  std::string text =
      fmt::format("{:<15} {:>6} {:>6} {:>7}  {}\n", "", "--lr", "--batch", "--epochs", "kept");
  for (const Task& task : tasks()) {
    const FinetuneOptions paper = paper_finetune_options(task.name);
    text += fmt::format("  {:<13} {:>6.0e} {:>7} {:>8}  {}\n", task.name, paper.learning_rate,
                        paper.batch, paper.epochs, paper.keep_best ? "best" : "last");
  }
  return text;
}

void add_options(CLI::App& app, Options& options) {
  app.add_option("--task", options.task, task_names())
      ->type_name("NAME")
      ->required()
      ->check(task_name());
  app.add_option("--task-data", options.data,
                 "folder of the tasks' folders (piqa, arc_easy, ...), or the\ntask's own")
      ->type_name("DIR")
      ->required();
  options.training.add_out(app);
  FinetuneOptions& job = options.job;
  add_number(app, "--epochs", options.epochs, "passes over the questions (left out: see below)",
             "N", whole_between(1, 1 << 20));
  add_number(app, "--batch", options.batch, "questions a step (left out: see below)", "B",
             whole_between(1, 1 << 20));
  add_number(app, "--lr", options.learning_rate,
             "learning rate, which falls linearly to 0 (left out: see below)", "R",
             real_between(0, 1e3));
  add_number(app, "--weight-decay", job.weight_decay,
             "of matrices, not of norms, biases and features", "W", real_between(0, 1e3))
      ->capture_default_str();
  add_number(app, "--clip", job.clip, "largest norm of the gradients of a step; 0: any", "C",
             real_between(0, 1e9))
      ->capture_default_str();
  add_number(app, "--warmup", job.warmup, "share of the steps over which the learning rate rises",
             "S", real_between(0, 0.99))
      ->capture_default_str();
  add_number(app, "--limit", options.limit, "train on N questions, evenly spread (left out: all)",
             "N", whole_from(1));
  add_number(app, "--evaluate-limit", options.evaluate_limit,
             "judge by N questions, evenly spread (left out: all)", "N", whole_from(1));
  options.training.add(app, "of the order of the questions", "less memory for a third more time");
}

}  // namespace

Command add_finetune(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "finetune", "Train all of a model, softmax or linear, on a multiple-choice task");
  const auto options = std::make_shared<Options>();
  options->model.add(*app);
  options->device.add(*app);
  add_options(*app, *options);
  add_json_flag(*app, options->json);
  app->footer(
      "The loss of a question is the cross-entropy over its candidates' log-likelihoods. The "
      "model\n"
      "is judged before training and after every epoch, on the questions that published figures\n"
      "are of, and the best epoch is kept. DIR is a complete model folder that inspect, evaluate\n"
      "and generate take. While training, the run is kept in DIR.training: after an interruption\n"
      "of any kind, --resume with the same options goes on, on the device that it began on, and\n"
      "ends in the same weights. A GPU computes in float32 here, as the CPU does.\n\n"
      "What is left out is as in the paper for GPT-2:\n" +
      paper_table() +
      "\nExample:\n  dofla finetune gpt2-linear --task arc_easy --task-data tasks --out "
      "gpt2-arc\n\n"
      "JSON:\n  {\"task\", \"train_questions\", \"train_truncated\", \"steps\", "
      "\"skipped_steps\",\n"
      "   \"before\": {\"questions\", \"acc\", \"acc_stderr\", \"acc_norm\", "
      "\"acc_norm_stderr\",\n"
      "   \"truncated\", \"not_finite\"}, \"epochs\": [{\"loss\", and as before}], \"kept\", "
      "\"seconds\"};\n"
      "   kept is the number of the epoch, counted from 1");
  return {app, [options] { run(*options); }};
}

}  // namespace dofla::cli
