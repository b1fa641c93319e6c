#include <limits>

#include "cli/divergence_lines.h"
#include "cli/finetune.h"
#include "cli/progress_bar.h"
#include "dofla/core/error.h"
#include "dofla/distributed/agreement.h"
#include "dofla/evaluate/next_token.h"
#include "dofla/fidelity/compare.h"
#include "dofla/fidelity/fidelity_json.h"
#include "dofla/linear/linear_model.h"
#include "dofla/model/finite.h"
#include "dofla/pipeline.h"

namespace dofla::cli {
namespace {

// The loss on the held-out windows with its sign turned; the worst there is where it is not finite.
Judgement judge_by(const WindowSet& held_out, const Transformer& model, const Progress& progress,
                   const Group& group) {
  const auto tokens = static_cast<int64_t>(held_out.size()) * (held_out.length() - 1);
  try {
    return {-evaluate_next_token(model, each_of(held_out), tokens, progress, group).loss, {}};
  } catch (const NotFinite&) {
    return {-std::numeric_limits<double>::infinity(), {}};
  }
}

void require_same_vocabulary(const Checkpoint& student, const Transformer& teacher,
                             const std::string& teacher_folder) {
  const int64_t found = teacher.config().vocabulary, expected = student.config().vocabulary;
  if (found != expected)
    fail("{}: a vocabulary of {}, that of {} has {}: a teacher has the tokens of its student",
         teacher_folder, found, student.folder().string(), expected);
}

// How far the model that was kept is from its teacher on the held-out windows; nothing where a loss
// is not finite.
std::optional<Divergence> compare_with(const Transformer& teacher, const Transformer& model,
                                       const WindowSet& held_out, const Progress& progress,
                                       const Group& group) {
  const auto tokens = static_cast<int64_t>(held_out.size()) * (held_out.length() - 1);
  try {
    return divergence_of(
        compare(teacher, {&model}, each_of(held_out), tokens, progress, group).front().windows);
  } catch (const NotFinite&) {
    return std::nullopt;
  }
}

OrderedJson to_json(const DistillText& text, const Finetuned& tuned) {
  const FinetuneResult& result = tuned.result;
  OrderedJson epochs = OrderedJson::array();
  for (size_t i = 0; i < result.epochs.size(); ++i)
    epochs.push_back({{"loss", tuned.loss(i)}, {"held_out_loss", -result.epochs[i].score}});
  return {{"train_windows", text.train.size()},
          {"held_out_windows", text.held_out.size()},
          {"steps", result.loss.size()},
          {"skipped_steps", result.skipped()},
          {"before", {{"held_out_loss", -result.before.score}}},
          {"epochs", std::move(epochs)},
          {"kept", result.kept},
          {"seconds", tuned.seconds}};
}

void print_table(const DistillText& text, const FinetuneOptions& job, const Finetuned& tuned) {
  const FinetuneResult& result = tuned.result;
  const auto windows = [](const WindowSet& of) {
    return counted(static_cast<int64_t>(of.size()), "window");
  };
  print(fmt::format("{} of {} tokens, {} of {}, learning rate {:g}; judged by {}\n",
                    windows(text.train), text.train.length(),
                    counted(static_cast<int64_t>(result.loss.size()), "step"), job.batch,
                    job.learning_rate, windows(text.held_out)));
  print(fmt::format("{:<11} {:>8}  {:>8}\n", "epoch", "loss", "held out"));
  print(fmt::format("{:<11} {:>8}  {:>8.4f}\n", epoch_label(result, 0), "", -result.before.score));
  for (size_t i = 0; i < result.epochs.size(); ++i)
    print(fmt::format("{:<11} {:>8.4f}  {:>8.4f}\n",
                      epoch_label(result, static_cast<int64_t>(i) + 1), tuned.loss(i),
                      -result.epochs[i].score));
  print_skipped(result);
}

}  // namespace

// docs/results/distill.md says what they gave. The next token alone is soon learnt by heart.
FinetuneOptions text_finetune_options(bool with_teacher) {
  FinetuneOptions options;
  options.epochs = with_teacher ? 3 : 1;
  options.batch = 8;
  options.learning_rate = with_teacher ? 2e-4 : 1e-4;
  options.feature_rate = with_teacher ? 20 : 1;
  options.checkpoint_every = 500;
  return options;
}

void FinetuneText::add(CLI::App& app) {
  text_.add(app);
  add_number(app, "--held-out", held_out_, "last windows of the text, kept to judge the model by",
             "T", whole_from(1))
      ->capture_default_str();
  app.add_option("--teacher", teacher_,
                 "learn this model's distribution of the next token instead of the\n"
                 "token alone")
      ->type_name("MODEL");
  for (const char* name : {"--data", "--ids", "--length", "--sequences", "--held-out", "--teacher"})
    app.get_option(name)->excludes("--task");
}

void FinetuneText::run(const FinetuneArguments& arguments) const {
  FinetuneOptions job = arguments.complete(text_finetune_options(!teacher_.empty()));
  const Checkpoint checkpoint(arguments.model.folder());
  DistillText text;
  {
    ProgressBar bar(arguments.stop);
    text = split_held_out(text_.read(checkpoint, bar.progress()), held_out_);
  }
  job.run = {{"sequence_length", text.train.length()},
             {"held_out_windows", text.held_out.size()},
             {"held_out", fingerprint_of(text.held_out)}};
  const Device device = arguments.device.get(arguments.group);
  std::optional<Checkpoint> teacher_checkpoint;
  std::optional<Transformer> teacher;
  if (!teacher_.empty()) {
    teacher_checkpoint.emplace(teacher_);
    teacher.emplace(load_model(*teacher_checkpoint, device));
    require_same_vocabulary(checkpoint, *teacher, teacher_);
    require_same_weights(arguments.group, *teacher_checkpoint);
    job.run["teacher"] = teacher_;
  }
  Transformer model = load_model(checkpoint, device, DType::kF32);
  require_finite_loss(model, text.held_out.front());
  checkpoint.require_unchanged();
  const MakeJudge judge = [&](const Progress& progress) {
    return [&, progress](const Transformer& now) {
      if (teacher_checkpoint) teacher_checkpoint->require_unchanged();
      return judge_by(text.held_out, now, progress, arguments.group);
    };
  };
  const Finetuned tuned = finetune_and_write(arguments, checkpoint, model,
                                             lessons_of(text.train, teacher ? &*teacher : nullptr),
                                             job, text_.files(), judge);
  std::optional<Divergence> divergence;
  if (teacher) {
    ProgressBar bar;
    divergence = compare_with(*teacher, model, text.held_out, bar.progress(), arguments.group);
  }
  if (arguments.json) {
    OrderedJson json = to_json(text, tuned);
    if (divergence) json["fidelity"] = dofla::to_json(*divergence);
    return print_json(json);
  }
  print_table(text, job, tuned);
  if (divergence)
    print(fmt::format("{:<12}{:.4f} nats a token held out, the student {:+.4f}\n", "teacher",
                      divergence->teacher_loss, divergence->added()) +
          divergence_lines(*divergence, 12));
  remark_on_kept(arguments, tuned);
}

}  // namespace dofla::cli
