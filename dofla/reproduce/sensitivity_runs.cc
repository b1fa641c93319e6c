#include "dofla/reproduce/sensitivity_runs.h"

#include "dofla/reproduce/dof_runs.h"
#include "dofla/sensitivity/allocate.h"

namespace dofla {
namespace {

SensitivityOptions options_of(const Suite& suite, uint64_t seed) {
  return {
      .features = suite.features, .cost = suite.costs.front(), .seed = seed, .exact = suite.exact};
}

Json sensitivity_settings(const Study& study, uint64_t seed) {
  const Suite& suite = study.suite;
  const SensitivityOptions options = options_of(suite, seed);
  Json settings = {{"teacher", study.teacher_line()},
                   {"device", study.device.description()},
                   {"features", name(suite.features)},
                   {"coordinates", name(suite.coordinates)},
                   {"ladder", ladder_around(suite.costs.front())},
                   {"steps", options.steps},
                   {"batch", options.batch},
                   {"sequence_length", study.text.train.length()},
                   {"text", fingerprint_of(study.text.train)},
                   {"costs", suite.costs},
                   {"seed", seed}};
  if (!suite.exact.empty()) settings["exact_keys"] = to_json(ExactKeySet{suite.exact});
  return settings;
}

Json measure_plans(const Study& study, uint64_t seed, const Progress& progress) {
  const Suite& suite = study.suite;
  const SensitivityTable table =
      measure_sensitivity(study.teacher, suite.coordinates, study.text.train,
                          options_of(suite, seed), study.device, progress);
  Json plans = Json::object();
  for (const int64_t cost : suite.costs)
    plans[plan_name(cost, PlanStrategy::kSensitivity)] =
        allocate(table, {.strategy = PlanStrategy::kSensitivity, .cost = cost}).heads;
  return {{"layers", table.layers}, {"plans", plans}};
}

}  // namespace

std::string sensitivity_run_name(uint64_t seed) {
  return fmt::format("sensitivity-s{}", seed);
}

Run sensitivity_run(const Study& study, uint64_t seed) {
  return {
      sensitivity_run_name(seed), "sensitivity",
      [&study, seed] { return sensitivity_settings(study, seed); },
      [&study, seed](const Progress& progress) { return measure_plans(study, seed, progress); }};
}

}  // namespace dofla
