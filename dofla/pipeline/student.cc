#include "dofla/pipeline/student.h"

#include "dofla/core/version.h"
#include "dofla/linear/linear_model.h"
#include "dofla/report/from_dof_table.h"
#include "dofla/report/from_sensitivity.h"
#include "dofla/report/page.h"

namespace dofla {
namespace {

TrainingSection training_section(const Checkpoint& teacher, const Distilled& result) {
  TrainingSection section;
  section.loss = result.settings["loss"].get<std::string>();
  // One curve a layer, or one for all where the loss is of the whole model.
  if (!result.history.loss.empty()) section.layer_loss.resize(result.history.loss.front().size());
  for (size_t step = 0; step < result.history.loss.size(); ++step)
    for (size_t layer = 0; layer < section.layer_loss.size(); ++layer)
      section.layer_loss[layer].push_back(
          {static_cast<double>(step + 1), result.history.loss[step][layer]});
  section.floor = result.floor;
  section.floor_name = section.loss == name(LossKind::kDirect)
                           ? "the teacher's loss"
                           : "the entropy of the teacher's attention";
  section.layer_error = result.attention_error;
  section.teacher_loss = result.comparison.teacher_loss;
  section.student_loss = result.comparison.loss;
  section.kl = result.comparison.kl;
  section.same_top = result.comparison.same_top;
  section.divergence = result.comparison;
  section.context = teacher.config().context;
  section.state_bytes = state_bytes(result.features, teacher.config());
  section.cache_bytes = cache_bytes(teacher.config(), teacher.config().context);
  section.tokens_per_second = result.tokens_per_second();
  for (const Control& control : result.controls.measured)
    section.controls.push_back({describe(control), control.loss, control.state_bytes});
  section.controls_notes = notes(result.controls, result.comparison.loss);
  return section;
}

ReportData report_of(const Checkpoint& teacher, const Distilled& result, const Json& about) {
  ReportData data;
  data.title = "Distillation of " + fs::absolute(teacher.folder()).filename().string();
  data.model = to_string(identity_of(teacher.config()));
  data.version = version();
  data.command = about.value("command", "");
  data.plan = from_dimension_plan(result.plan, result.dof ? &*result.dof : nullptr);
  data.training = training_section(teacher, result);
  if (result.dof) data.dof = from_dof_table(*result.dof, result.dof->lambda);
  if (result.sensitivity) {
    data.sensitivity = from_sensitivity(*result.sensitivity, &result.plan);
    data.sensitivity->realised = result.added;
    data.sensitivity->realised_whole = result.comparison.added();
  }
  for (const auto& [key, value] : about.items())
    if (key != "dims" && key != "command")
      data.facts.emplace_back(key, value.is_string() ? value.get<std::string>() : value.dump());
  return data;
}

}  // namespace

void write_student(const fs::path& folder, const Checkpoint& teacher, const Distilled& result,
                   const Json& provenance) {
  Json about = result.settings;
  about.update(provenance);
  NewFolder out(folder);
  write_linear_model(out.path(), teacher, result.features, about);
  save_dimension_plan(out.path() / "plan.json", result.plan);
  if (result.dof) save_dof_table(out.path() / "dof.json", *result.dof);
  if (result.sensitivity) save_sensitivity(out.path() / "sensitivity.json", *result.sensitivity);
  write_whole(out.path() / "report.html", render_page(report_of(teacher, result, about)));
  out.commit();
}

}  // namespace dofla
