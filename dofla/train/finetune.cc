#include "dofla/train/finetune.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "dofla/core/error.h"
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

}  // namespace

FinetuneOptions paper_finetune_options(std::string_view task) {
  const auto found = std::ranges::find(kGpt2, task, &PaperSettings::task);
  if (found == std::end(kGpt2)) fail("{}: the paper does not fine-tune on it", printable(task));
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

FinetuneResult finetune(Transformer& model, const Lessons& lessons, const FinetuneOptions& options,
                        const Judge& judge, const Progress& progress) {
  require(static_cast<bool>(judge), "finetune: nothing to judge the model by");
  require(options.checkpoint_every > 0, "finetune: a checkpoint every {} steps",
          options.checkpoint_every);
  Finetuner run(model, lessons, options);
  // The first checkpoint comes before all work: a place that cannot be written to, or has no room
  // for those to come, shows at once.
  if (options.resume)
    run.restore();
  else
    run.save();
  using Clock = std::chrono::steady_clock;
  Clock::time_point saved = Clock::now();
  const auto keep = [&] {
    const std::chrono::duration<double> since = Clock::now() - saved;
    if (!run.healthy() || since.count() < options.checkpoint_pause) return;
    run.save();
    saved = Clock::now();
  };
  while (true) {
    if (run.waits_for_judgement()) {
      run.take(judge(model));
      keep();
    }
    if (run.is_over()) return run.finish();
    run.step();
    const int64_t before = run.steps_done() - 1, each = run.steps_per_epoch();
    const std::string stage = fmt::format("epoch {} of {}", before / each + 1, options.epochs);
    report(progress, {stage, before % each + 1, each, "steps"});
    if (run.steps_done() % options.checkpoint_every == 0 && !run.at_epoch_end()) keep();
  }
}

}  // namespace dofla
