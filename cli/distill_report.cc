#include "cli/distill_report.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "dofla/core/version.h"
#include "dofla/linear/linear_model.h"
#include "dofla/report/facts.h"
#include "dofla/report/from_dof_table.h"
#include "dofla/report/page.h"

namespace dofla::cli {
namespace {

double training_rate(const Distilled& result) {
  if (result.train_seconds <= 0) return 0;
  return static_cast<double>(result.train_tokens) / result.train_seconds;
}

std::string loss_name(const DistillOptions& job) {
  return job.train.steps == 0 ? "none" : job.run["loss"].get<std::string>();
}

TrainingSection training_section(const Checkpoint& teacher, const DistillOptions& job,
                                 const Distilled& result) {
  TrainingSection section;
  section.loss = loss_name(job);
  // One curve a layer, or one for all where the loss is of the whole model.
  if (!result.history.loss.empty()) section.layer_loss.resize(result.history.loss.front().size());
  for (size_t step = 0; step < result.history.loss.size(); ++step)
    for (size_t layer = 0; layer < section.layer_loss.size(); ++layer)
      section.layer_loss[layer].push_back(
          {static_cast<double>(step + 1), result.history.loss[step][layer]});
  section.floor = result.floor;
  section.floor_name = job.direct ? "the teacher's loss" : "the entropy of the teacher's attention";
  section.layer_error = result.comparison.attention_error;
  section.teacher_loss = result.comparison.teacher_loss;
  section.student_loss = result.comparison.student_loss;
  section.kl = result.comparison.kl;
  section.top1_agreement = result.comparison.top1_agreement;
  section.context = teacher.config().context;
  section.state_bytes = state_bytes(result.features);
  section.cache_bytes = cache_bytes(teacher.config(), teacher.config().context);
  section.tokens_per_second = training_rate(result);
  return section;
}

}  // namespace

std::string distill_table(const Checkpoint& teacher, const DistillOptions& job,
                          const Distilled& result, double seconds) {
  const Comparison& compared = result.comparison;
  const int64_t context = teacher.config().context;
  std::string text = fmt::format(
      "teacher        {:.4f} nats a token on {} held-out tokens\n"
      "student        {:.4f}  ({:+.4f})\n"
      "KL             {:.4f}  from the teacher's distribution to the student's\n"
      "agreement      {:.1f} % of the most likely tokens\n"
      "features       {}, mean {:.1f} a head\n"
      "memory         {} a sequence, whatever its length; the cache takes {} at {} tokens\n",
      compared.teacher_loss, grouped(compared.tokens), compared.student_loss,
      compared.student_loss - compared.teacher_loss, compared.kl, 100 * compared.top1_agreement,
      fmt::join(result.plan.dims(), " "), result.plan.mean(),
      with_bytes_unit(state_bytes(result.features)),
      with_bytes_unit(cache_bytes(teacher.config(), context)), grouped(context));
  text += fmt::format("layer error    {:.3f}  of each layer's attention output, relative\n",
                      fmt::join(compared.attention_error, " "));
  if (const auto layers = layers_worse_than_nothing(compared.attention_error); !layers.empty())
    text +=
        fmt::format("               layer {}: an error above 1, worse than an output of zeros\n",
                    fmt::join(layers, ", "));
  text += fmt::format("training       {} steps of the {} loss, {} tokens/s; {:.0f} s in all\n",
                      job.train.steps, loss_name(job),
                      grouped(static_cast<int64_t>(training_rate(result))), seconds);
  if (!result.history.skipped.empty()) {
    const SkippedStep& first = result.history.skipped.front();
    text += fmt::format("skipped        {} steps that were not finite, first layer {} head {}\n",
                        result.history.skipped.size(), first.layer + 1, first.head + 1);
  }
  return text;
}

OrderedJson distill_json(const DistillOptions& job, const Distilled& result, double seconds) {
  OrderedJson json = {{"teacher_loss", result.comparison.teacher_loss},
                      {"student_loss", result.comparison.student_loss},
                      {"kl", result.comparison.kl},
                      {"top1_agreement", result.comparison.top1_agreement},
                      {"dims", result.plan.dims()},
                      {"steps", job.train.steps},
                      {"skipped_steps", result.history.skipped.size()},
                      {"seconds", seconds},
                      {"tokens_per_second", training_rate(result)},
                      {"attention_error", result.comparison.attention_error}};
  if (result.plan.strategy == PlanStrategy::kDofHead) json["heads"] = result.plan.heads;
  return json;
}

void write_distill_report(const fs::path& folder, const Checkpoint& teacher,
                          const DistillOptions& job, const Distilled& result) {
  const ModelConfig& config = teacher.config();
  ReportData data;
  data.title = "Distillation of " + fs::absolute(teacher.folder()).filename().string();
  data.model = to_string(identity_of(config));
  data.version = version();
  data.command = job.run.value("command", "");
  data.plan = from_dimension_plan(result.plan, result.dof ? &*result.dof : nullptr);
  data.training = training_section(teacher, job, result);
  if (result.dof) {
    data.dof = from_dof_table(*result.dof, job.allocate.lambda);
    save_dof_table(folder / "dof.json", *result.dof);
  }
  for (const auto& [key, value] : job.run.items())
    if (key != "dims" && key != "command")
      data.facts.emplace_back(key, value.is_string() ? value.get<std::string>() : value.dump());
  save_dimension_plan(folder / "plan.json", result.plan);
  write_whole(folder / "report.html", render_page(data));
}

}  // namespace dofla::cli
