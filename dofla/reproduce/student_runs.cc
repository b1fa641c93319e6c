#include "dofla/reproduce/student_runs.h"

#include <algorithm>
#include <cmath>

#include "dofla/checkpoint/config_fields.h"
#include "dofla/core/error.h"
#include "dofla/linear/linear_model.h"
#include "dofla/reproduce/dof_runs.h"

namespace dofla {
namespace {

fs::path features_file(const Study& study, const Student& student) {
  return study.folder / "features" / (student.name() + ".safetensors");
}

void save_features(const fs::path& file, const FeatureSet& features) {
  fs::create_directories(file.parent_path());
  write_safetensors(file, to_tensors(features.to(Device())),
                    {{"map", std::string(name(features.map))},
                     {"coordinates", std::string(name(features.coordinates.kind))},
                     {"counts", Json(features.counts()).dump()},
                     {"exact_keys", to_json(features.exact).dump()}});
}

// As many steps as take the time that the suite's steps of the other loss took.
int64_t equal_time_steps(const Study& study, const RunFolder& folder, const Student& student) {
  Student own = student, other = student;
  own.equal_time = other.equal_time = false;
  other.loss = study.suite.equal_time->as;
  const double own_seconds = read_student_result(folder, own).step_seconds;
  const double seconds = read_student_result(folder, other).step_seconds;
  if (!(own_seconds > 0 && seconds > 0))
    fail(
        "needs the time of a step of {} and {}: one of them went on after an interruption without "
        "a step to time; remove their records to have them made again",
        own.name(), other.name());
  const double steps = static_cast<double>(study.suite.steps) * seconds / own_seconds;
  return std::clamp<int64_t>(std::llround(std::min(steps, 1e9)), 1, ConfigFields::kLargestSize);
}

DistillOptions distill_options(const Study& study, const RunFolder& folder,
                               const Student& student) {
  const int64_t steps =
      student.equal_time ? equal_time_steps(study, folder, student) : study.suite.steps;
  DistillOptions job = student_options(study, student, plan_of(study, folder, student), steps);
  job.about = {{"teacher", study.teacher_line()},
               {"strategy", name(student.strategy)},
               {"held_out", study.suite.held_out},
               {"device", study.device.description()}};
  return job;
}

Json distill_student(const Study& study, const RunFolder& folder, const Student& student,
                     const Progress& progress) {
  DistillOptions job = distill_options(study, folder, student);
  job.checkpoint =
      training_file(study, student.name(), distill_settings(study.teacher, study.text, job));
  job.resume = fs::exists(job.checkpoint);
  const Distilled distilled = distill(study.teacher, study.text, job, progress);
  save_features(features_file(study, student), distilled.features);
  fs::remove(job.checkpoint);
  const Divergence& compared = distilled.comparison;
  // Only the steps since an interruption, if there was one, were timed.
  const auto timed_steps = static_cast<double>(distilled.train_tokens) /
                           static_cast<double>(job.batch) /
                           static_cast<double>(study.text.train.length());
  return {{"teacher_loss", compared.teacher_loss},
          {"student_loss", compared.loss},
          {"kl", compared.kl},
          {"same_top", compared.same_top},
          {"tokens", compared.tokens},
          {"features", distilled.plan.mean()},
          {"steps", job.recipe.train.steps},
          {"skipped_steps", distilled.history.skipped.size()},
          {"step_seconds", timed_steps > 0 ? distilled.train_seconds / timed_steps : 0}};
}

// What is trained and how: a suite says it for all of its students at once.
Recipe recipe_of(const Suite& suite, const Student& student, int64_t steps) {
  RecipeOptions options = {.features = student.map};
  if (student.map == FeatureMap::kPerformer) return make_recipe(options);
  const auto rates = suite.learning_rates.find(std::string(student.loss_or_map()));
  if (rates != suite.learning_rates.end()) {
    options.lr_z = rates->second.z;
    options.lr_alpha = rates->second.alpha;
  }
  options.steps = steps;
  if (student.map == FeatureMap::kDijiang) return make_recipe(options);
  options.init = suite.init;
  options.loss = student.loss;
  if (!is_direct(*options.loss)) options.mask = suite.mask;
  return make_recipe(options);
}

}  // namespace

DimensionPlan with_exact_keys(const Study& study, DimensionPlan plan) {
  if (study.suite.exact.empty()) return plan;
  plan.exact.assign(plan.heads.size(), study.suite.exact);
  plan.key_heads = study.teacher.config().kv_heads;
  return plan;
}

DistillOptions student_options(const Study& study, const Student& student,
                               const DimensionPlan& plan, int64_t steps) {
  const Suite& suite = study.suite;
  DistillOptions job;
  job.plan = student.baseline() ? plan : with_exact_keys(study, plan);
  job.coordinates = suite.coordinates;
  job.sequences = suite.dof_sequences;
  job.recipe = recipe_of(suite, student, steps);
  const bool drawn_by_leverage = !student.baseline() && suite.init == FeatureInit::kLeverage;
  if (drawn_by_leverage) job.dof = suite.dof;
  job.batch = suite.batch;
  job.seed = student.seed;
  job.device = study.device;
  return job;
}

Run student_run(const Study& study, const RunFolder& folder, const Student& student) {
  return {student.name(), fmt::format("c{}-{}", student.cost, student.loss_or_map()),
          [&study, &folder, student] {
            return distill_settings(study.teacher, study.text,
                                    distill_options(study, folder, student));
          },
          [&study, &folder, student](const Progress& progress) {
            return distill_student(study, folder, student, progress);
          }};
}

StudentResult read_student_result(const RunFolder& folder, const Student& student) {
  const ConfigFields fields(folder.result(student.name()), student.name());
  const auto number = [&](const char* field) {
    const auto value = fields.number(field);
    if (!value) fields.refuse(field, "missing; remove the record to have it made again");
    return *value;
  };
  return {.teacher_loss = number("teacher_loss"),
          .student_loss = number("student_loss"),
          .features = number("features"),
          .steps = number("steps"),
          .step_seconds = number("step_seconds")};
}

FeatureSet load_student(const Study& study, const Student& student) {
  const Safetensors file(features_file(study, student));
  const auto entry = [&](const char* key) {
    const auto found = file.metadata().find(key);
    if (found == file.metadata().end()) fail("{}: no {}", file.path().string(), key);
    return found->second;
  };
  const auto map = find_named<FeatureMap>(entry("map"));
  if (!map) fail("{}: map: {} is not a feature map", file.path().string(), printable(entry("map")));
  const auto coordinates = find_named<Coordinates>(entry("coordinates"));
  if (!coordinates)
    fail("{}: coordinates: {} are none", file.path().string(), printable(entry("coordinates")));
  const Json counts = parse_json(entry("counts"), file.path().string());
  const FindTensor find = [&](const std::string& tensor, const Shape& expected) {
    const Tensor found = file.tensor(tensor);
    if (found.shape() != expected)
      fail("{}: {}: expected {}, found {}", file.path().string(), tensor, to_string(expected),
           to_string(found.shape()));
    return found.clone();
  };
  FeatureSetForm form = {*map, *coordinates, counts.get<std::vector<std::vector<int64_t>>>()};
  const Json exact = parse_json(entry("exact_keys"), file.path().string());
  if (!exact.empty())
    form.exact =
        read_exact_keys(exact, study.teacher.config().layers, study.teacher.config().kv_heads,
                        file.path().string() + ": exact_keys");
  return from_tensors(form, study.teacher.config(), find);
}

}  // namespace dofla
