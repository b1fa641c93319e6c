#include "cli/divergence_lines.h"
#include "cli/finetune.h"
#include "cli/progress_bar.h"
#include "dofla/fidelity/fidelity_json.h"

namespace dofla::cli {
namespace {

OrderedJson to_json(const Judgement& judged, bool by_kl) {
  OrderedJson json = {{"held_out_loss", judged.loss}};
  if (by_kl) json["held_out_kl"] = -judged.score;
  return json;
}

OrderedJson to_json(const DistillText& text, const Finetuned& tuned, bool by_kl) {
  const FinetuneResult& result = tuned.result;
  OrderedJson epochs = OrderedJson::array();
  for (size_t i = 0; i < result.epochs.size(); ++i) {
    OrderedJson& epoch = epochs.emplace_back();
    epoch["loss"] = result.epoch_loss(i);
    epoch.update(to_json(result.epochs[i], by_kl));
  }
  return {{"train_windows", text.train.size()},
          {"held_out_windows", text.held_out.size()},
          {"steps", result.loss.size()},
          {"skipped_steps", result.skipped()},
          {"before", to_json(result.before, by_kl)},
          {"epochs", std::move(epochs)},
          {"kept", result.kept},
          {"seconds", tuned.seconds}};
}

void print_table(const DistillText& text, const FinetuneOptions& job, const Finetuned& tuned,
                 bool by_kl) {
  const FinetuneResult& result = tuned.result;
  const auto windows = [](const WindowSet& of) {
    return counted(static_cast<int64_t>(of.size()), "window");
  };
  print(fmt::format("{} of {} tokens, {} of {}, learning rate {:g}; judged by {}\n",
                    windows(text.train), text.train.length(),
                    counted(static_cast<int64_t>(result.loss.size()), "step"), job.batch,
                    job.learning_rate, windows(text.held_out)));
  const auto line = [by_kl](const std::string& epoch, const std::string& loss,
                            const Judgement& judged) {
    print(fmt::format("{:<11} {:>8}  {:>8.4f}", epoch, loss, judged.loss));
    print(by_kl ? fmt::format("  {:>8.4f}\n", -judged.score) : "\n");
  };
  print(fmt::format("{:<11} {:>8}  {:>8}{}\n", "epoch", "loss", "held out",
                    by_kl ? "        KL" : ""));
  line(epoch_label(result, 0), "", result.before);
  for (size_t i = 0; i < result.epochs.size(); ++i)
    line(epoch_label(result, static_cast<int64_t>(i) + 1),
         fmt::format("{:.4f}", result.epoch_loss(i)), result.epochs[i]);
  print_skipped(result);
}

}  // namespace

void FinetuneText::add(CLI::App& app) {
  const HelpSection section(app, "Text");
  text_.add(app);
  add_number(app, "--held-out", held_out_, "last windows of the text, kept to judge the model by",
             "T", whole_from(1))
      ->capture_default_str();
  app.add_option("--teacher", teacher_,
                 "learn this model's distribution of the next token instead of the\n"
                 "token alone")
      ->type_name("MODEL");
  app.add_option("--taught", taught_,
                 "the same from what dofla teach has written of such a model on this\ntext")
      ->type_name("FILE")
      ->excludes("--teacher");
  compare_.add(app)->needs("--teacher");
  for (const char* name :
       {"--data", "--ids", "--length", "--sequences", "--held-out", "--teacher", "--taught"})
    app.get_option(name)->excludes("--task");
}

void FinetuneText::run(const FinetuneArguments& arguments) const {
  const Checkpoint checkpoint(arguments.model.folder());
  // Low-rank updates bear larger steps than the matrices that they are added to.
  const bool learns = !teacher_.empty() || !taught_.empty();
  const bool is_close =
      learns && !arguments.learning_rate && arguments.job.lora == 0 && has_exact_keys(checkpoint);
  const FinetuneOptions job = arguments.complete(
      is_close ? close_student_options(checkpoint.config().width) : text_finetune_options(learns));
  std::optional<Checkpoint> teacher;
  std::optional<TeacherFile> taught;
  if (!teacher_.empty()) teacher.emplace(teacher_);
  if (teacher && arguments.group.is_first()) compare_.prepare(*teacher);
  if (!taught_.empty()) taught.emplace(taught_);
  DistillText text;
  std::optional<Finetuned> tuned;
  {
    ProgressBar bar(arguments.stop);
    text = split_held_out(text_.read(checkpoint, bar.progress()), held_out_);
    tuned = finetune_on_text(
        checkpoint, {.model = teacher ? &*teacher : nullptr, .file = taught ? &*taught : nullptr},
        text, arguments.device.get(arguments.group), job,
        arguments.training.logged(arguments.group, bar.progress()));
  }
  if (!arguments.group.is_first()) return;
  write_model(arguments, checkpoint, *tuned, text_.files());
  const std::optional<Divergence>& divergence = tuned->divergence;
  std::optional<Verdict> verdict;
  if (teacher)
    verdict = compare_.write(*teacher, arguments.training.out(), text.held_out,
                             arguments.device.get(), arguments.stop);
  if (arguments.json) {
    OrderedJson json = to_json(text, *tuned, teacher.has_value());
    if (divergence) json["fidelity"] = dofla::to_json(*divergence);
    if (verdict) json["verdict"] = dofla::to_json(*verdict);
    return print_json(json);
  }
  print_table(text, job, *tuned, teacher.has_value());
  if (divergence)
    print(fmt::format("{:<12}{:.4f} nats a token held out, the student {:+.4f}\n", "teacher",
                      divergence->teacher_loss, divergence->added()) +
          divergence_lines(*divergence, 12));
  print(verdict_lines(verdict, 12));
  remark_on_kept(arguments, *tuned);
}

}  // namespace dofla::cli
