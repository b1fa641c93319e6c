#include "dofla/reproduce/timing_runs.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "dofla/checkpoint/config_fields.h"
#include "dofla/core/error.h"
#include "dofla/generate/inference_time.h"
#include "dofla/linear/linear_model.h"
#include "dofla/reproduce/dof_runs.h"
#include "dofla/reproduce/student_runs.h"

namespace dofla {
namespace {

constexpr int kRounds = 3;  // the fastest of them counts

std::string inference_name(int64_t cost) {
  return fmt::format("c{}-inference", cost);
}
std::string training_name(int64_t cost) {
  return fmt::format("c{}-training-time", cost);
}

// Keeps the least of what it is given.
class Fastest {
 public:
  void add(double value) { least_ = std::min(least_, value); }
  double value() const { return least_; }

 private:
  double least_ = std::numeric_limits<double>::infinity();
};

std::vector<DimensionPlan> plans(const Study& study, const RunFolder& folder, int64_t cost) {
  std::vector<DimensionPlan> all;
  for (const PlanStrategy strategy : study.suite.strategies)
    all.push_back(with_exact_keys(study, plan_of(study, folder,
                                                 {.cost = cost,
                                                  .map = study.suite.features,
                                                  .strategy = strategy,
                                                  .loss = {},
                                                  .seed = study.suite.seeds.front()})));
  return all;
}

Json measure_inference(const Study& study, const RunFolder& folder, int64_t cost,
                       const Progress& progress) {
  // The time of a feature does not depend on its value: the students are as drawn.
  std::vector<Transformer> models;
  models.emplace_back(study.teacher, study.device);
  for (const DimensionPlan& plan : plans(study, folder, cost))
    models.push_back(make_linear_model(
        study.teacher, init_features(plan, {.map = study.suite.features}), study.device));
  const std::vector<int64_t>& lengths = study.suite.timing;
  std::vector<TokenTime> fastest(models.size() * lengths.size());
  const auto total = static_cast<int64_t>(kRounds * fastest.size());
  int64_t done = 0;
  for (int round = 0; round < kRounds; ++round)
    for (size_t i = 0; i < fastest.size(); ++i) {
      fastest[i].keep_faster(time_inference(models[i / lengths.size()], study.text.train,
                                            lengths[i % lengths.size()]));
      report(progress, {"time inference", ++done, total, "sequences"});
    }
  Json result = {{"prefill_ms", Json::array()}, {"decode_ms", Json::array()}};
  for (const TokenTime& time : fastest) {
    result["prefill_ms"].push_back(1e3 * time.prefill);
    result["decode_ms"].push_back(1e3 * time.decode);
  }
  return result;
}

Json measure_training(const Study& study, int64_t cost, const Progress& progress) {
  const Suite& suite = study.suite;
  const Transformer teacher(study.teacher, study.device);
  ShuffledBatches batches(study.text.train, suite.batch, suite.seeds.front());
  const auto forward_seconds = [&] {
    const auto start = std::chrono::steady_clock::now();
    teacher.forward(batches.at(0));
    study.device.synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  const auto step_seconds = [&](LossKind loss) {
    const Student student = {
        .cost = cost, .map = suite.features, .loss = loss, .seed = suite.seeds.front()};
    const DimensionPlan plan =
        fixed_plan(identity_of(study.teacher.config()), cost, study.feature_heads(suite.features));
    return measure_step_seconds(study.teacher, study.text,
                                student_options(study, student, plan, 2));
  };
  const double to_ms_a_sample = 1e3 / static_cast<double>(suite.batch);
  Fastest forward;
  std::vector<Fastest> steps(suite.losses.size());
  forward_seconds();  // the first one also pays for reading the weights
  const auto total = static_cast<int64_t>(kRounds * steps.size());
  int64_t done = 0;
  for (int round = 0; round < kRounds; ++round)
    for (size_t i = 0; i < steps.size(); ++i) {
      forward.add(to_ms_a_sample * forward_seconds());
      steps[i].add(to_ms_a_sample * step_seconds(suite.losses[i]));
      report(progress, {"time training", ++done, total, "steps"});
    }
  Json result = {{"teacher_forward_ms", forward.value()}, {"losses_ms", Json::array()}};
  for (const Fastest& step : steps) result["losses_ms"].push_back(step.value());
  return result;
}

// The `count` positive numbers of a record's field.
std::vector<double> read_numbers(const RunFolder& folder, const std::string& run, const char* field,
                                 size_t count) {
  const ConfigFields fields(folder.result(run), run);
  const Json* found = fields.find(field);
  std::vector<double> numbers;
  if (found != nullptr && found->is_array())
    for (const Json& number : *found)
      if (number.is_number()) numbers.push_back(number.get<double>());
  if (numbers.size() != count)
    fields.refuse(
        field, fmt::format("expected {} numbers; remove the record to have it made again", count));
  return numbers;
}

}  // namespace

Run inference_run(const Study& study, const RunFolder& folder, int64_t cost) {
  const auto settings = [&study, &folder, cost] {
    Json dims = Json::array();
    for (const DimensionPlan& plan : plans(study, folder, cost)) dims.push_back(plan.heads);
    return Json{{"teacher", study.teacher_line()},
                {"device", study.device.description()},
                {"lengths", study.suite.timing},
                {"dims", dims},
                {"exact_keys", to_json(study.suite.exact)}};
  };
  return {inference_name(cost), "inference", settings,
          [&study, &folder, cost](const Progress& progress) {
            return measure_inference(study, folder, cost, progress);
          }};
}

Run training_time_run(const Study& study, int64_t cost) {
  const auto settings = [&study, cost] {
    Json losses = Json::array();
    for (const LossKind loss : study.suite.losses) losses.push_back(name(loss));
    return Json{{"teacher", study.teacher_line()},
                {"device", study.device.description()},
                {"cost", cost},
                {"batch", study.suite.batch},
                {"sequence_length", study.text.train.length()},
                {"init", name(study.suite.init)},
                {"mask", name(study.suite.mask)},
                {"exact_keys", to_json(study.suite.exact)},
                {"losses", losses}};
  };
  return {training_name(cost), "training-time", settings, [&study, cost](const Progress& progress) {
            return measure_training(study, cost, progress);
          }};
}

InferenceResult read_inference(const Study& study, const RunFolder& folder, int64_t cost) {
  const size_t lengths = study.suite.timing.size();
  const size_t models = 1 + study.suite.strategies.size();
  const std::string run = inference_name(cost);
  const auto prefill = read_numbers(folder, run, "prefill_ms", models * lengths);
  const auto decode = read_numbers(folder, run, "decode_ms", models * lengths);
  InferenceResult result(models);
  for (size_t i = 0; i < models * lengths; ++i)
    result[i / lengths].push_back({prefill[i], decode[i]});
  return result;
}

TrainingTime read_training_time(const Study& study, const RunFolder& folder, int64_t cost) {
  const std::string run = training_name(cost);
  const ConfigFields fields(folder.result(run), run);
  return {fields.positive("teacher_forward_ms"),
          read_numbers(folder, run, "losses_ms", study.suite.losses.size())};
}

}  // namespace dofla
