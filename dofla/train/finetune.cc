#include "dofla/train/finetune.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "dofla/core/error.h"
#include "dofla/core/stopwatch.h"
#include "dofla/train/finetuner.h"

namespace dofla {
namespace {

struct PaperSettings {
  std::string_view task;
  double learning_rate;
  int64_t batch, epochs;
  bool keep_best;
};

constexpr PaperSettings kGpt2[] = {
    {"piqa", 1e-4, 128, 3, true},       {"logiqa", 5e-5, 64, 3, true},
    {"arc_easy", 1e-4, 64, 3, true},    {"arc_challenge", 1e-5, 64, 3, true},
    {"winogrande", 5e-4, 128, 3, true}, {"wsc", 1e-6, 128, 3, true},
    {"mmlu", 1e-6, 64, 1, false},
};

constexpr PaperSettings kPythia[] = {
    {"piqa", 1e-5, 64, 3, true},       {"logiqa", 5e-5, 32, 3, true},
    {"arc_easy", 5e-5, 32, 3, true},   {"arc_challenge", 5e-5, 32, 3, true},
    {"winogrande", 5e-5, 64, 3, true}, {"wsc", 5e-5, 64, 3, true},
    {"mmlu", 5e-6, 32, 1, false},
};

// Tells of the step that was just made, and throws Cancelled if it should be the last for now.
void tell(const Finetuner& run, const FinetuneOptions& options, TrainingStep step,
          const Progress& progress) {
  step.step = run.steps_done();
  step.loss = run.loss().back();
  step.learning_rate = run.learning_rate(run.steps_done() - 1);
  const int64_t before = run.steps_done() - 1, each = run.steps_per_epoch();
  const std::string stage = fmt::format("epoch {} of {}", before / each + 1, options.epochs);
  report(options.group, progress, {stage, before % each + 1, each, "steps", &step});
}

FinetuneResult run_to_the_end(Finetuner& run, const Transformer& model,
                              const FinetuneOptions& options, const Judge& judge,
                              const Progress& progress) {
  const Stopwatch whole;
  Stopwatch since_checkpoint;
  const auto keep = [&](bool wanted) {
    const double since = since_checkpoint.seconds();
    const bool due =
        since >= options.checkpoint_seconds || (wanted && since >= options.checkpoint_pause);
    // All ranks write it together: the clock of the first one counts.
    const Group& group = options.group;
    if (options.checkpoint.empty() || !run.healthy() || !group.any(group.is_first() && due)) return;
    run.save();
    since_checkpoint = Stopwatch();
  };
  while (true) {
    if (run.waits_for_judgement()) {
      run.take(judge(model));
      keep(true);
    }
    if (run.is_over()) return run.finish();
    const Stopwatch one;
    const int64_t tokens = run.step();
    TrainingStep step;
    step.tokens_per_second = static_cast<double>(tokens) / one.seconds();
    step.seconds = whole.seconds();
    tell(run, options, step, progress);
    if (!run.at_epoch_end()) keep(run.steps_done() % options.checkpoint_every == 0);
  }
}

}  // namespace

FinetuneOptions paper_finetune_options(std::string_view task, std::string_view family) {
  const std::span<const PaperSettings> settings =
      family == "gpt_neox" ? std::span<const PaperSettings>(kPythia) : kGpt2;
  const auto found = std::ranges::find(settings, task, &PaperSettings::task);
  if (found == settings.end()) fail("{}: the paper does not fine-tune on it", printable(task));
  FinetuneOptions options;
  options.learning_rate = found->learning_rate;
  options.batch = found->batch;
  options.epochs = found->epochs;
  options.keep_best = found->keep_best;
  return options;
}

int64_t FinetuneResult::skipped() const {
  return std::ranges::count_if(loss, [](double x) { return std::isnan(x); });
}

double FinetuneResult::epoch_loss(size_t epoch) const {
  const size_t steps = loss.size() / epochs.size();
  double sum = 0;
  int64_t taken = 0;
  for (size_t i = epoch * steps; i < (epoch + 1) * steps; ++i)
    if (!std::isnan(loss[i])) {
      sum += loss[i];
      ++taken;
    }
  return sum / static_cast<double>(taken);
}

FinetuneResult finetune(Transformer& model, const TrainingExamples& examples,
                        const FinetuneOptions& options, const Judge& judge,
                        const Progress& progress) {
  require(static_cast<bool>(judge), "finetune: nothing to judge the model by");
  require(options.checkpoint_every > 0, "finetune: a checkpoint every {} steps",
          options.checkpoint_every);
  Finetuner run(model, examples, options);
  run.require_same_job();
  // The first checkpoint comes before all work: a place that cannot be written to, or has no room
  // for those to come, shows at once.
  if (options.resume)
    run.restore();
  else
    run.save();
  try {
    return run_to_the_end(run, model, options, judge, progress);
  } catch (const Cancelled&) {
    if (run.healthy()) run.save();
    options.group.wait();  // nobody leaves before the run is kept
    throw;
  }
}

}  // namespace dofla
