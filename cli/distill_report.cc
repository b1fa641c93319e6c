#include "cli/distill_report.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "cli/controls_table.h"
#include "cli/divergence_lines.h"
#include "dofla/fidelity/fidelity_json.h"
#include "dofla/linear/linear_model.h"
#include "dofla/report/facts.h"
#include "dofla/sensitivity/allocate.h"

namespace dofla::cli {
namespace {

// Of a key head, on average, of every layer.
std::vector<int64_t> keys_of(const DimensionPlan& plan) {
  std::vector<int64_t> keys;
  for (const ExactKeys& exact : plan.exact)
    keys.push_back(exact.total_keys(plan.key_heads) / plan.key_heads);
  return keys;
}

}  // namespace

std::string distill_table(const Checkpoint& teacher, const Distilled& result, double seconds) {
  const Divergence& compared = result.comparison;
  const int64_t context = teacher.config().context;
  const int64_t kept = std::ranges::count_if(result.features.layers, &Features::empty);
  std::string text = fmt::format(
      "teacher        {:.4f} nats a token on {} held-out tokens\n"
      "student        {:.4f}  ({:+.4f})\n"
      "{}"
      "features       {}, mean {:.1f} a head\n"
      "memory         {} a sequence, {}; the cache takes {} at {} tokens\n",
      compared.teacher_loss, grouped(compared.tokens), compared.loss, compared.added(),
      divergence_lines(compared, 15), fmt::join(result.plan.dims(), " "), result.plan.mean(),
      with_bytes_unit(result.plan.state_bytes()),
      kept == 0 ? "whatever its length"
                : fmt::format("and the cache of {} with softmax attention", counted(kept, "layer")),
      with_bytes_unit(cache_bytes(teacher.config(), context)), grouped(context));
  if (!result.plan.exact.empty())
    text += fmt::format("exact keys     {} a key head, mean of each layer\n",
                        fmt::join(keys_of(result.plan), " "));
  text += fmt::format("layer error    {:.3f}  of each layer's attention output, relative\n",
                      fmt::join(result.attention_error, " "));
  if (const auto layers = layers_worse_than_nothing(result.attention_error); !layers.empty())
    text +=
        fmt::format("               layer {}: an error above 1, worse than an output of zeros\n",
                    fmt::join(layers, ", "));
  if (result.sensitivity)
    text += fmt::format(
        "loss added     {:.3f}  by each layer alone\n"
        "  predicted    {:.3f}\n",
        fmt::join(result.added, " "),
        fmt::join(predicted_loss(*result.sensitivity, result.plan), " "));
  text += controls_table(result.controls, {.loss = compared.loss,
                                           .teacher_loss = compared.teacher_loss,
                                           .state_bytes = result.plan.state_bytes()});
  text += fmt::format("training       {} steps of the {} loss, {} tokens/s; {:.0f} s in all\n",
                      result.steps(), result.settings["loss"].get<std::string>(),
                      grouped(static_cast<int64_t>(result.tokens_per_second())), seconds);
  if (!result.history.skipped.empty()) {
    const SkippedStep& first = result.history.skipped.front();
    text += fmt::format("skipped        {} steps that were not finite, first layer {} head {}\n",
                        result.history.skipped.size(), first.layer + 1, first.head + 1);
  }
  return text;
}

OrderedJson distill_json(const Distilled& result, double seconds) {
  OrderedJson json = {{"teacher_loss", result.comparison.teacher_loss},
                      {"student_loss", result.comparison.loss},
                      {"kl", result.comparison.kl},
                      {"same_top", result.comparison.same_top},
                      {"dims", result.plan.dims()},
                      {"state_bytes", result.plan.state_bytes()},
                      {"steps", result.steps()},
                      {"skipped_steps", result.history.skipped.size()},
                      {"seconds", seconds},
                      {"tokens_per_second", result.tokens_per_second()},
                      {"attention_error", result.attention_error},
                      {"controls", to_json(result.controls)}};
  json["fidelity"] = dofla::to_json(result.comparison);
  if (result.plan.by == PlanUnit::kHead) json["heads"] = result.plan.heads;
  if (!result.plan.exact.empty()) json["keys"] = keys_of(result.plan);
  if (result.sensitivity) {
    json["predicted"] = predicted_loss(*result.sensitivity, result.plan);
    json["added"] = result.added;
  }
  return json;
}

}  // namespace dofla::cli
