#include "cli/finetune.h"

#include <memory>

#include "cli/choice_option.h"
#include "cli/usage_error.h"

namespace dofla::cli {
namespace {

struct Options {
  FinetuneArguments all;
  FinetuneTask task;
  FinetuneText text;
};

void run(const Options& options, const Group& group) {
  options.all.training.guard(group, [&](const std::atomic<bool>* stop) {
    FinetuneArguments arguments = options.all;
    arguments.stop = stop;
    arguments.group = group;
    if (options.task.given())
      options.task.run(arguments);
    else
      options.text.run(arguments);
  });
}

std::string settings_row(std::string_view name, const FinetuneOptions& options,
                         const std::string& rate) {
  return fmt::format("  {:<13} {:>6} {:>7} {:>8}  {}\n", name, rate, options.batch, options.epochs,
                     options.keep_best ? "best" : "last");
}

std::string settings_row(std::string_view name, const FinetuneOptions& options) {
  return settings_row(name, options, fmt::format("{:.0e}", options.learning_rate));
}

// The defaults, a line a task: the paper's settings.
std::string settings_table() {
  std::string text =
      fmt::format("{:<15} {:>6} {:>6} {:>7}  {}\n", "", "--lr", "--batch", "--epochs", "kept");
  for (const Task& task : tasks())
    text += settings_row(task.name, paper_finetune_options(task.name));
  return text + settings_row("text", text_finetune_options(false)) +
         settings_row("text, teacher", text_finetune_options(true)) +
         settings_row("  exact keys", close_student_options(1),
                      fmt::format("{:g}e-3/C", kCloseRate * 1e3)) +
         "  C: the model's width\n";
}

void add_options(CLI::App& app, FinetuneArguments& arguments) {
  FinetuneOptions& job = arguments.job;
  arguments.training.add_out(app);
  const HelpSection section(app, "Training");
  add_choice(app, "--train", arguments.train,
             "what learns: the features of a linear model; these and the projections of\n"
             "attention; all (default: all, with --lora attention)");
  add_number(app, "--lora", job.lora,
             "instead of the matrices of attention W, updates of this rank learn:\n"
             "W + B A, which the new model has as its matrices",
             "R", whole_between(1, 1 << 20));
  add_number(app, "--epochs", arguments.epochs,
             "passes over the questions or windows (default: see below)", "N",
             whole_between(1, 1 << 20));
  add_number(app, "--batch", arguments.batch, "questions or windows a step (default: see below)",
             "B", whole_between(1, 1 << 20));
  add_number(app, "--lr", arguments.learning_rate,
             "learning rate, which falls linearly to 0 (default: see below)", "R",
             real_between(0, 1e3));
  add_number(app, "--feature-rate", arguments.feature_rate,
             "times --lr is the learning rate of a linear model's features\n"
             "(default: 1, with a teacher 20, at the default --lr for exact keys 0.8 C)",
             "F", real_between(0, 1e6));
  add_number(app, "--weight-decay", job.weight_decay,
             "of matrices, not of norms, biases and features", "W", real_between(0, 1e3))
      ->capture_default_str();
  add_number(app, "--clip", job.clip, "largest norm of the gradients of a step; 0: any", "C",
             real_between(0, 1e9))
      ->capture_default_str();
  add_choice(app, "--moments", job.moments,
             "the optimizer's: bf16, rounded stochastically, takes half the memory");
  add_number(app, "--warmup", job.warmup, "share of the steps over which the learning rate rises",
             "S", real_between(0, 0.99))
      ->capture_default_str();
  arguments.training.add(app, "of the order of the questions or windows", "50, on text 500",
                         "less memory for a third more time");
}

}  // namespace

FinetuneOptions FinetuneArguments::complete(const FinetuneOptions& otherwise) const {
  FinetuneOptions full = job;
  full.train = train.value_or(job.lora > 0 ? TrainedPart::kAttention : TrainedPart::kAll);
  if (job.lora > 0 && full.train != TrainedPart::kAttention)
    throw UsageError(
        fmt::format("--lora is of the matrices of attention, --train {} is not", name(full.train)));
  full.epochs = epochs.value_or(otherwise.epochs);
  full.batch = batch.value_or(otherwise.batch);
  full.learning_rate = learning_rate.value_or(otherwise.learning_rate);
  full.feature_rate = feature_rate.value_or(otherwise.feature_rate);
  full.keep_best = otherwise.keep_best;
  full.checkpoint_every = otherwise.checkpoint_every;
  full.group = group;
  training.set(full);
  full.recompute = training.recompute();
  return full;
}

void write_model(const FinetuneArguments& arguments, const Checkpoint& checkpoint,
                 const Finetuned& tuned, const std::vector<std::string>& data) {
  arguments.training.write(
      [&] { write_finetuned(arguments.training.out(), checkpoint, tuned, provenance(data)); });
}

void print_skipped(const FinetuneResult& result) {
  if (result.skipped() > 0)
    print(fmt::format("skipped    {} that were not finite\n", counted(result.skipped(), "step")));
}

void remark_on_kept(const FinetuneArguments& arguments, const Finetuned& tuned) {
  const FinetuneResult& result = tuned.result;
  if (result.kept == 0)
    remark("every epoch is worse than the model was before: it is kept as it was");
  else if (result.is_worse())
    remark("the model is worse than before training: the last epoch is kept, as the paper does");
  remark(fmt::format(
      "{}: the model {}; {:.0f} s", arguments.training.out(),
      result.kept == 0 ? "as it was before training" : fmt::format("of epoch {}", result.kept),
      tuned.seconds));
}

std::string epoch_label(const FinetuneResult& result, int64_t epoch) {
  return fmt::format("{}{}", epoch == 0 ? "before" : std::to_string(epoch),
                     epoch == result.kept ? " kept" : "");
}

Command add_finetune(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "finetune",
      "Train all or a part of a model, softmax or linear, on text or on a multiple-choice task");
  const auto options = std::make_shared<Options>();
  options->all.model.add(*app);
  options->all.device.add(*app);
  options->task.add(*app);
  options->text.add(*app);
  add_options(*app, options->all);
  add_json_flag(*app, options->all.json);
  app->footer(
      "With --task the loss of a question is the cross-entropy over its candidates'\n"
      "log-likelihoods, and the model is judged by the questions that published figures are of.\n"
      "Without, it learns to predict the next token of a text, and is judged by the windows held\n"
      "out: what a student lost to its teacher comes back this way. It is judged before training\n"
      "and after every epoch, with --teacher by its KL from the teacher, and the best epoch is\n"
      "kept; if all are worse than the model was before, it is kept as it was, with a message.\n"
      "DIR is a complete model folder that inspect, evaluate and generate take. While training,\n"
      "the run is kept in DIR.training: after an interruption of any kind, --resume with the\n"
      "same options continues it, on the same device, and gives the same weights. Weights,\n"
      "gradients and, unless --moments says otherwise, the optimizer are in float32; a GPU\n"
      "computes with bf16 copies.\n\n"
      "Defaults; for tasks those of the paper for GPT-2:\n" +
      settings_table() +
      "\nExample:\n  dofla finetune gpt2-linear --teacher gpt2 --data wiki.jsonl.zst --out "
      "gpt2-tuned\n"
      "  dofla finetune gpt2-linear --task arc_easy --task-data tasks --out gpt2-arc\n"
      "  dofla finetune gpt2-linear --teacher gpt2 --data wiki.jsonl.zst --lora 16 --lr 1e-3 --out "
      "gpt2-lora\n\n"
      "JSON:\n  {\"task\", \"train_questions\", \"train_truncated\", \"steps\", "
      "\"skipped_steps\",\n"
      "   \"before\": {\"questions\", \"acc\", \"acc_stderr\", \"acc_norm\", "
      "\"acc_norm_stderr\",\n"
      "   \"truncated\", \"not_finite\"}, \"epochs\": [{\"loss\", and as before}], \"kept\", "
      "\"seconds\"};\n"
      "   kept is the number of the epoch, 0 if all were worse than before training. On text:\n"
      "   {\"train_windows\",\n"
      "   \"held_out_windows\", \"steps\", \"skipped_steps\", \"before\": {\"held_out_loss\"},\n"
      "   \"epochs\": [{\"loss\", \"held_out_loss\"}], \"kept\", \"seconds\"}, with --teacher\n"
      "   \"held_out_kl\" beside every \"held_out_loss\", and \"fidelity\": as a text of dofla\n"
      "   compare, with --compare \"verdict\"");
  return {.app = app, .share = [options](const Group& group) { run(*options, group); }};
}

}  // namespace dofla::cli
