#include "dofla/report/page.h"

#include <algorithm>

#include <fmt/format.h>

#include "dofla/report/charts.h"
#include "dofla/report/facts.h"
#include "dofla/report/fidelity_tables.h"
#include "dofla/report/page_frame.h"
#include "dofla/report/tables.h"
#include "dofla/report/text.h"

namespace dofla {
namespace {

// Numbers the figures as they come.
class Figures {
 public:
  std::string add(const std::string& chart, const std::string& caption, const std::string& table) {
    return fmt::format(
        "<figure>\n{}<figcaption><b>Figure {}.</b> {}</figcaption>\n"
        "<details><summary>Numbers</summary>\n{}</details>\n</figure>\n",
        chart, ++count_, caption, table);
  }

 private:
  int count_ = 0;
};

std::string facts_list(const std::string& facts) {
  return facts.empty() ? "" : "<dl class=\"facts\">\n" + facts + "</dl>\n";
}

std::string section(const char* title, const std::string& facts, const std::string& figures) {
  std::string html = fmt::format("<section>\n<h2>{}</h2>\n{}", title, facts);
  if (!figures.empty()) html += "<div class=\"figures\">\n" + figures + "</div>\n";
  return html + "</section>\n";
}

std::string heat_map_figure(const DofSection& dof, Figures& figures) {
  return figures.add(
      render_heat_map(dof),
      fmt::format(
          "Degrees of freedom of every head at λ\u00a0=\u00a0{}; the largest of each layer is "
          "marked. Mean over the draws, ± the spread.",
          format_lambda(dof.lambda)),
      dof_table_html(dof));
}

// What was measured on a GPU comes without spectra.
bool has_spectra(const DofSection& dof) {
  return std::any_of(dof.layers.begin(), dof.layers.end(), [](const LayerDof& layer) {
    return std::any_of(layer.heads.begin(), layer.heads.end(),
                       [](const HeadDof& head) { return !head.spectrum.empty(); });
  });
}

std::string spectra_figure(const DofSection& dof, Figures& figures) {
  const char* others = shows_other_heads(dof) ? "; faint, the others" : "";
  return figures.add(
      render_spectra(dof),
      fmt::format("Decay of the spectrum. In colour, the largest head of each layer{}. An "
                  "eigenvalue σ counts as σ/(σ + λ) degrees of freedom: one far above λ, none far "
                  "below.",
                  others),
      spectra_table_html(dof));
}

std::string by_lambda_figure(const DofSection& dof, Figures& figures) {
  return figures.add(render_dof_by_lambda(dof),
                     "Degrees of freedom of every layer (its largest head) against λ.",
                     by_lambda_table_html(dof));
}

bool has_errors(const DofSection& dof) {
  return !dof.layers.front().leverage_error.empty();
}

std::string errors_figure(const DofSection& dof, Figures& figures) {
  return figures.add(
      render_feature_errors(dof),
      "Error of the kernel, relative to it and λ, of M untrained features for the largest head of "
      "each layer. In colour, drawn from the leverage density; faint, from the Gaussian one. The "
      "numbers have the theorem's bound at a probability of 0.9 beside them.",
      feature_errors_table_html(dof));
}

std::string plan_figure(const PlanSection& plan, Figures& figures) {
  const bool differ = std::any_of(plan.layers.begin(), plan.layers.end(), heads_differ);
  const bool spread = std::any_of(plan.layers.begin(), plan.layers.end(),
                                  [](const LayerPlan& layer) { return layer.spread != 0; });
  return figures.add(
      render_dimension_bars(plan),
      fmt::format(
          "Feature dimension of every layer, strategy <bdi>{}</bdi> at cost C\u00a0=\u00a0{}. {}",
          escape_html(plan.strategy), format_number(plan.cost),
          differ   ? "Bars: the mean over the heads; dots: the single heads."
          : spread ? "Whiskers: how far M moves with the spread of the degrees of freedom."
                   : ""),
      plan_table_html(plan));
}

std::string sensitivity_section(const SensitivitySection& sensitivity, Figures& figures) {
  std::string charts =
      figures.add(render_sensitivity(sensitivity),
                  "Loss that a layer adds when it alone is linear, against its features a head, "
                  "measured on training text with students that were trained shortly.",
                  sensitivity_table_html(sensitivity));
  if (!sensitivity.predicted.empty())
    charts += figures.add(render_predicted_loss(sensitivity),
                          sensitivity.realised.empty()
                              ? "What these curves predict for the features of the plan."
                              : "What these curves predict for the features of the plan, and what "
                                "the trained layers add on held-out text, each alone.",
                          predicted_loss_table_html(sensitivity));
  return section("Sensitivity", facts_list(sensitivity_facts(sensitivity)), charts);
}

std::string loss_figure(const TrainingSection& training, Figures& figures) {
  const std::string name =
      training.loss.empty() ? "" : " (<bdi>" + escape_html(training.loss) + "</bdi>)";
  std::string floor;
  if (!training.floor.empty())
    floor = fmt::format(" {}: <bdi>{}</bdi>, below which the loss cannot fall.",
                        training.floor.size() == 1 ? "Marked" : "Faint",
                        escape_html(training.floor_name));
  const char* whose = training.layer_loss.size() == 1 ? "" : " of every layer";
  return figures.add(
      render_loss_curves(training),
      fmt::format("Training loss{}{}. Long runs are drawn as means over equal numbers of steps.{}",
                  whose, name, floor),
      loss_table_html(training));
}

std::string error_figure(const TrainingSection& training, Figures& figures) {
  return figures.add(render_layer_errors(training),
                     "Error of every layer's attention output on held-out text, given the "
                     "teacher's own queries, keys and values, relative to that output.",
                     error_table_html(training));
}

// A note on the layers that would do better with no attention output at all.
std::string error_note(const TrainingSection& training) {
  const std::vector<size_t> layers = layers_worse_than_nothing(training.layer_error);
  if (layers.empty()) return "";
  std::string names;
  for (const size_t layer : layers) names += fmt::format("{}{}", names.empty() ? "" : ", ", layer);
  return fmt::format(
      "<p class=\"note\"><strong>Layer {}: an error above 1</strong>, worse than an output of "
      "zeros. More features, more steps or a lower learning rate may mend it.</p>\n",
      names);
}

std::string controls_notes(const TrainingSection& training) {
  std::string html;
  for (const std::string& note : training.controls_notes)
    html += fmt::format("<p class=\"note\"><bdi>{}</bdi></p>\n", escape_html(note));
  return html;
}

std::string controls_figure(const TrainingSection& training) {
  return fmt::format(
      "<figure>\n{}<figcaption><b>Baselines</b> on the same text: the student with "
      "one of its parts alone, and the teacher with exact keys alone in the same "
      "memory.</figcaption>\n</figure>\n",
      controls_table_html(training));
}

// The same numbers that dofla compare has of a text.
std::string divergence_figure(const Divergence& d) {
  const auto percent = [](double share) { return format_number(100 * share, 3) + " %"; };
  return fmt::format(
      "<figure>\n{}<figcaption><b>How far the student is from its teacher</b> on the held-out "
      "text, token by token.</figcaption>\n</figure>\n",
      name_value_table(
          {{"KL, mean", with_error(d.kl, d.kl_stderr)},
           {"KL, median", format_number(d.kl_median, 3)},
           {"KL, 90th and 95th percentile",
            format_number(d.kl_90, 3) + ", " + format_number(d.kl_95, 3)},
           {"KL, 99th and 99.9th percentile",
            format_number(d.kl_99, 3) + ", " + format_number(d.kl_999, 3)},
           {"KL, largest", format_number(d.kl_max, 3)},
           {"perplexity ratio", format_number(d.perplexity_ratio(), 4)},
           {"same likeliest token", percent(d.same_top)},
           {"of the five likeliest", percent(d.top5_overlap)},
           {"probability of the true token",
            percent(d.p_change) + " on average, " + percent(d.p_change_rms) + " RMS"},
           {"entropy", format_number(d.entropy_change, 3) + " nats against the teacher's"},
           {"calibration error", percent(d.calibration.error) + ", the teacher's " +
                                     percent(d.teacher_calibration.error)}}));
}

std::string dof_and_plan(const ReportData& data, Figures& figures) {
  std::string facts, charts;
  if (data.dof) {
    facts += facts_list(dof_facts(*data.dof));
    if (!data.dof->layers.empty()) charts += heat_map_figure(*data.dof, figures);
  }
  if (data.plan) {
    facts += facts_list(plan_facts(*data.plan));
    if (!data.plan->layers.empty()) charts += plan_figure(*data.plan, figures);
  }
  const char* title = !data.plan  ? "Degrees of freedom"
                      : !data.dof ? "Dimension plan"
                                  : "Degrees of freedom and dimension plan";
  return section(title, facts, charts);
}

std::string sections(const ReportData& data) {
  Figures figures;
  std::string html;
  if (data.dof || data.plan) html += dof_and_plan(data, figures);
  if (data.dof && !data.dof->layers.empty()) {
    const bool spectra = has_spectra(*data.dof);
    const std::string figure = spectra ? spectra_figure(*data.dof, figures) : "";
    html +=
        section(spectra ? "Spectra" : "Other λ", "", figure + by_lambda_figure(*data.dof, figures));
    if (has_errors(*data.dof))
      html += section("Random features", "", errors_figure(*data.dof, figures));
  }
  if (data.sensitivity) html += sensitivity_section(*data.sensitivity, figures);
  if (data.training) {
    std::string charts;
    if (!data.training->layer_loss.empty()) charts += loss_figure(*data.training, figures);
    if (!data.training->layer_error.empty()) charts += error_figure(*data.training, figures);
    if (data.training->divergence) charts += divergence_figure(*data.training->divergence);
    if (!data.training->controls.empty()) charts += controls_figure(*data.training);
    html += section("Distillation",
                    facts_list(training_facts(*data.training)) + error_note(*data.training) +
                        controls_notes(*data.training),
                    charts + name_value_table(data.facts));
  } else if (!data.facts.empty()) {
    html += section("Run", "", name_value_table(data.facts));
  }
  return html;
}

}  // namespace

std::string render_page(const ReportData& data) {
  return frame_page({data.title, data.model, data.command, data.version}, sections(data));
}

}  // namespace dofla
