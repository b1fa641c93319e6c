#include "dofla/reproduce/matrix.h"

#include <algorithm>

#include "dofla/reproduce/dof_runs.h"
#include "dofla/reproduce/sensitivity_runs.h"
#include "dofla/reproduce/student_runs.h"
#include "dofla/reproduce/task_runs.h"
#include "dofla/reproduce/timing_runs.h"

namespace dofla {

std::vector<Run> make_matrix(const Study& study, const RunFolder& folder) {
  const Suite& suite = study.suite;
  std::vector<Run> runs;
  const bool sensitivity =
      std::ranges::find(suite.strategies, PlanStrategy::kSensitivity) != suite.strategies.end();
  for (const uint64_t seed : suite.seeds) {
    runs.push_back(dof_run(study, seed));
    if (sensitivity) runs.push_back(sensitivity_run(study, seed));
  }
  for (const Student& student : students(suite))
    runs.push_back(student_run(study, folder, student));
  for (const int64_t cost : suite.costs) {
    if (suite.timing.empty()) continue;
    runs.push_back(inference_run(study, folder, cost));
    if (!suite.losses.empty()) runs.push_back(training_time_run(study, cost));
  }
  for (Run& run : task_runs(study, folder)) runs.push_back(std::move(run));
  for (Run& run : runs)
    run.work = [&study, work = std::move(run.work)](const Progress& progress) {
      Json result = work(progress);
      study.teacher.require_unchanged();  // else it would be recorded, and believed, for good
      return result;
    };
  return runs;
}

}  // namespace dofla
