#include "dofla/reproduce/dof_runs.h"

#include <algorithm>

#include "dofla/core/error.h"
#include "dofla/reproduce/sensitivity_runs.h"

namespace dofla {
namespace {

Json settings_of(const Study& study, uint64_t seed) {
  const Suite& suite = study.suite;
  return {{"teacher", study.teacher_line()},
          {"device", study.device.description()},
          {"features", name(suite.features)},
          {"coordinates", name(suite.coordinates)},
          {"lambda", suite.dof.lambda},
          {"gram", name(suite.dof.gram)},
          {"samples", suite.dof.samples},
          {"draws", suite.dof.draws},
          {"sequences", suite.dof_sequences},
          {"sequence_length", study.text.train.length()},
          {"text", fingerprint_of(study.text.train)},
          {"costs", suite.costs},
          {"power", suite.power},
          {"seed", seed}};
}

// Plans of every strategy, whichever the suite asks for: they cost nothing, and a suite that asks
// for one more need not measure again.
Json plans_from(const Study& study, const DofTable& table) {
  const auto plan_heads = [&](PlanStrategy strategy, int64_t cost) {
    AllocateOptions options = {.strategy = strategy, .cost = cost};
    if (strategy == PlanStrategy::kDofHead) options.power = study.suite.power;
    return allocate(table, options).heads;
  };
  Json plans = Json::object();
  for (const int64_t cost : study.suite.costs)
    for (const PlanStrategy strategy :
         {PlanStrategy::kDof, PlanStrategy::kDofClip, PlanStrategy::kDofHead})
      plans[plan_name(cost, strategy)] = plan_heads(strategy, cost);
  return plans;
}

Json measure(const Study& study, uint64_t seed, const Progress& progress) {
  const std::vector<TokenIds> sequences =
      first_windows(study.text.train, study.suite.dof_sequences);
  DofOptions dof = study.suite.dof;
  dof.features = study.suite.features;
  const DofTable table = measure_dof(study.teacher, study.suite.coordinates, sequences, dof, seed,
                                     study.device, progress);
  std::vector<std::vector<double>> heads;
  for (const DofRow& row : degrees_of_freedom(table, table.lambda)) {
    std::vector<double>& line = heads.emplace_back();
    for (const DofEstimate& head : row.heads) line.push_back(head.mean);
  }
  return {{"heads", heads}, {"plans", plans_from(study, table)}};
}

template <class Value>
bool has_shape(const std::vector<std::vector<Value>>& rows, int64_t layers, int64_t heads) {
  return static_cast<int64_t>(rows.size()) == layers &&
         std::all_of(rows.begin(), rows.end(), [&](const std::vector<Value>& row) {
           return static_cast<int64_t>(row.size()) == heads;
         });
}

// The table of numbers, one row a layer and one column a head, that stands at `place` in a record.
template <class Value>
std::vector<std::vector<Value>> read_heads(const Study& study, const RunFolder& folder,
                                           const std::string& run, const std::string& place) {
  try {
    auto rows =
        folder.result(run).at(Json::json_pointer(place)).get<std::vector<std::vector<Value>>>();
    const int64_t heads = study.feature_heads(study.suite.features);
    if (has_shape(rows, study.teacher.config().layers, heads)) return rows;
  } catch (const Json::exception&) {
    // Said below, like every other defect of the record.
  }
  fail("{}: no {} for {} in the record; remove it to have it made again", run, place,
       study.teacher_line());
}

}  // namespace

std::string plan_name(int64_t cost, PlanStrategy strategy) {
  return fmt::format("c{}-{}", cost, name(strategy));
}

std::string dof_run_name(uint64_t seed) {
  return fmt::format("dof-s{}", seed);
}

Run dof_run(const Study& study, uint64_t seed) {
  return {dof_run_name(seed), "dof", [&study, seed] { return settings_of(study, seed); },
          [&study, seed](const Progress& progress) { return measure(study, seed, progress); }};
}

std::vector<std::vector<double>> read_dof(const Study& study, const RunFolder& folder,
                                          uint64_t seed) {
  return read_heads<double>(study, folder, dof_run_name(seed), "/heads");
}

DimensionPlan plan_of(const Study& study, const RunFolder& folder, const Student& student) {
  const FeatureMap map = student.baseline() ? student.map : study.suite.features;
  DimensionPlan plan =
      fixed_plan(identity_of(study.teacher.config()), student.cost, study.feature_heads(map));
  if (student.strategy == PlanStrategy::kFix) return plan;
  plan.strategy = student.strategy;
  plan.lambda = study.suite.dof.lambda;
  plan.power = study.suite.power;
  const bool sensitivity = plan.strategy == PlanStrategy::kSensitivity;
  if (plan.strategy == PlanStrategy::kDofHead || sensitivity) plan.by = PlanUnit::kHead;
  const std::string run =
      sensitivity ? sensitivity_run_name(student.seed) : dof_run_name(student.seed);
  const std::string wanted = plan_name(student.cost, student.strategy);
  plan.heads = read_heads<int64_t>(study, folder, run, "/plans/" + wanted);
  for (const std::vector<int64_t>& row : plan.heads)
    for (const int64_t features : row)
      if (features < 1 || features > DimensionPlan::kLargestDimension)
        fail("{}: plans: {}: a head of {} features", run, wanted, features);
  return plan;
}

}  // namespace dofla
