#include "dofla/report/facts.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "dofla/core/bytes.h"
#include "dofla/report/charts.h"
#include "dofla/report/text.h"

namespace dofla {
namespace {

std::string fact(std::string_view name, const std::string& value, const std::string& note = "") {
  return fmt::format("<div><dt>{}</dt><dd>{}{}</dd></div>\n", name, value,
                     note.empty() ? "" : "<small>" + note + "</small>");
}

double median(std::vector<double> values) {
  std::erase_if(values, [](double value) { return !std::isfinite(value); });
  if (values.empty()) return std::nan("");
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace

std::vector<size_t> layers_worse_than_nothing(const std::vector<double>& layer_error) {
  std::vector<size_t> layers;
  for (size_t s = 0; s < layer_error.size(); ++s)
    if (!(layer_error[s] <= 1)) layers.push_back(s + 1);
  return layers;
}

std::string dof_facts(const DofSection& dof) {
  std::vector<double> all;
  size_t most_heads = 0;
  const HeadDof* largest = nullptr;
  std::string where;
  for (size_t s = 0; s < dof.layers.size(); ++s) {
    const LayerDof& layer = dof.layers[s];
    most_heads = std::max(most_heads, layer.heads.size());
    for (const HeadDof& head : layer.heads) all.push_back(head.dof);
    const int64_t h = largest_head(layer);
    if (h < 0 || (largest && layer.heads[static_cast<size_t>(h)].dof <= largest->dof)) continue;
    largest = &layer.heads[static_cast<size_t>(h)];
    where = fmt::format("layer {}, head {}", s + 1, h + 1);
  }
  std::string facts;
  facts += fact("Layers × heads", fmt::format("{} × {}", dof.layers.size(), most_heads));
  if (largest) {
    facts += fact("Largest head", format_dof(largest->dof), where);
    facts += fact("Median head", format_dof(median(all)));
  }
  facts += fact("λ", format_lambda(dof.lambda));
  facts += fact("Gram scale", "<bdi>" + escape_html(dof.gram) + "</bdi>");
  facts += fact("Samples × draws", fmt::format("{} × {}", format_count(dof.samples), dof.draws));
  return facts;
}

std::string plan_facts(const PlanSection& plan) {
  double sum = 0, least = 0, most = 0;
  bool any = false;
  for (const LayerPlan& layer : plan.layers) {
    sum += mean_dimension(layer);
    for (const int64_t m : layer.heads) {
      const auto value = static_cast<double>(m);
      least = any ? std::min(least, value) : value;
      most = any ? std::max(most, value) : value;
      any = true;
    }
  }
  std::string facts;
  facts += fact("Strategy", "<bdi>" + escape_html(plan.strategy) + "</bdi>");
  facts += fact("Cost C", format_number(plan.cost));
  if (any) {
    facts += fact("Mean M", format_number(sum / static_cast<double>(plan.layers.size())));
    facts += fact("Range of M", fmt::format("{}–{}", format_number(least), format_number(most)));
  }
  int64_t fewest = plan.layers.empty() ? 0 : plan.layers.front().keys, largest = fewest;
  for (const LayerPlan& layer : plan.layers) {
    fewest = std::min(fewest, layer.keys);
    largest = std::max(largest, layer.keys);
  }
  if (largest > 0)
    facts += fact("Exact keys", fewest == largest ? format_count(largest)
                                                  : fmt::format("{}–{}", format_count(fewest),
                                                                format_count(largest)));
  return facts;
}

std::string sensitivity_facts(const SensitivitySection& sensitivity) {
  std::string facts = fact("Measured on", fmt::format("{} windows", sensitivity.windows));
  if (!sensitivity.predicted.empty()) {
    double sum = 0;
    for (const double added : sensitivity.predicted) sum += added;
    facts += fact("Predicted above the teacher", format_number(sum), "the sum over the layers");
  }
  if (sensitivity.realised_whole)
    facts += fact("Realised", format_number(*sensitivity.realised_whole),
                  "all layers together, on held-out text");
  return facts;
}

std::string training_facts(const TrainingSection& training) {
  std::string facts;
  if (training.teacher_loss) facts += fact("Teacher loss", format_number(*training.teacher_loss));
  if (training.student_loss)
    facts += fact("Student loss", format_number(*training.student_loss),
                  training.teacher_loss
                      ? format_number(*training.student_loss - *training.teacher_loss, 3) +
                            " above the teacher"
                      : "");
  if (training.kl) facts += fact("KL(teacher‖student)", format_number(*training.kl));
  if (training.same_top)
    facts += fact("Same likeliest token", format_number(100 * *training.same_top, 3) + " %");
  if (training.state_bytes) facts += fact("State", with_bytes_unit(*training.state_bytes));
  if (training.cache_bytes) {
    std::string note;
    if (training.context) note = fmt::format("at {} tokens", format_count(*training.context));
    if (training.state_bytes && *training.state_bytes > 0)
      note += fmt::format("{}{} × the state", note.empty() ? "" : ", ",
                          format_number(static_cast<double>(*training.cache_bytes) /
                                            static_cast<double>(*training.state_bytes),
                                        3));
    facts += fact("Key/value cache", with_bytes_unit(*training.cache_bytes), note);
  }
  if (training.tokens_per_second)
    facts += fact("Speed", format_number(*training.tokens_per_second), "tokens/s");
  return facts;
}

}  // namespace dofla
