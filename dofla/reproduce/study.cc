#include "dofla/reproduce/study.h"

#include <algorithm>

#include "dofla/core/error.h"
#include "dofla/linear/linear_model.h"

namespace dofla {
namespace {

void require_within_context(const char* field, int64_t tokens, const ModelConfig& config) {
  if (tokens > config.context)
    fail("the suite's {} of {} is more than the teacher's context of {}", field, tokens,
         config.context);
}

}  // namespace

std::string Study::teacher_line() const {
  return teacher_name + ", " + to_string(identity_of(teacher.config()));
}

Study open_study(const Suite& suite, const fs::path& folder, const Device& device,
                 const Progress& progress, const fs::path& token_cache) {
  require(!suite.teacher.empty() && !suite.data.empty(), "open_study: no teacher or no text");
  const Checkpoint teacher(suite.teacher);
  if (is_linear(teacher))
    fail("{}: is a linear-attention model already; name its teacher", suite.teacher.string());
  require_within_context("length", suite.length, teacher.config());
  for (const int64_t tokens : suite.timing)
    require_within_context("timing", tokens, teacher.config());
  fs::path place = fs::absolute(suite.teacher).lexically_normal();
  if (!place.has_filename()) place = place.parent_path();
  TextRemarks remarks;
  const WindowSet windows = read_windows(
      teacher, {.files = suite.data, .length = suite.length, .token_cache = token_cache}, progress,
      &remarks);
  return {.suite = suite,
          .teacher = teacher,
          .teacher_name = place.filename().string(),
          .text = split_held_out(windows, suite.held_out),
          .remarks = std::move(remarks),
          .device = device,
          .folder = folder};
}

fs::path training_file(const Study& study, const std::string& run, const Json& settings) {
  const fs::path folder = study.folder / "training";
  fs::create_directories(folder);
  return folder / fmt::format("{}-{:016x}", run, std::hash<std::string>()(settings.dump()));
}

int64_t Study::feature_heads(FeatureMap map) const {
  return dofla::feature_heads(map, teacher.config().heads, teacher.config().kv_heads);
}

std::string Student::name() const {
  std::string text = fmt::format("c{}-", cost);
  if (!baseline()) text += fmt::format("{}-", dofla::name(strategy));
  text += loss_or_map();
  return text + fmt::format("-s{}{}", seed, equal_time ? "-equal-time" : "");
}

std::vector<Student> students(const Suite& suite) {
  std::vector<Student> all;
  for (const uint64_t seed : suite.seeds)
    for (const int64_t cost : suite.costs) {
      for (const FeatureMap map : suite.baselines)
        all.push_back({.cost = cost, .map = map, .loss = {}, .seed = seed});
      for (const PlanStrategy strategy : suite.strategies) {
        for (const LossKind loss : suite.losses)
          all.push_back({.cost = cost,
                         .map = suite.features,
                         .strategy = strategy,
                         .loss = loss,
                         .seed = seed});
        if (suite.equal_time)
          all.push_back({.cost = cost,
                         .map = suite.features,
                         .strategy = strategy,
                         .loss = suite.equal_time->loss,
                         .seed = seed,
                         .equal_time = true});
      }
    }
  return all;
}

}  // namespace dofla
