#include "cli/task_results.h"

#include <cmath>

#include <fmt/ranges.h>

#include "dofla/data/tasks/task.h"

namespace dofla::cli {

CLI::Validator task_name() {
  return CLI::Validator(
      [](const std::string& name) -> std::string {
        try {
          find_task(name);
          return {};
        } catch (const std::exception& error) {
          return error.what();
        }
      },
      "");
}

std::string task_names() {
  std::vector<std::string> names;
  for (const Task& task : tasks()) names.push_back(task.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string percent(const Accuracy& accuracy) {
  if (std::isnan(accuracy.standard_error)) return fmt::format("{:.1f} %", 100 * accuracy.mean);
  return fmt::format("{:.1f} ± {:.1f} %", 100 * accuracy.mean, 100 * accuracy.standard_error);
}

void remark_on_truncated(const std::string& what, int64_t questions, int64_t context) {
  if (questions > 0)
    remark(fmt::format("{}: {} longer than the model's context of {} tokens: cut on the left", what,
                       counted(questions, "question"), context));
}

void remark_on(const std::string& task, const TaskResult& result, int64_t context) {
  remark_on_truncated(task, result.truncated, context);
  if (result.not_finite > 0)
    remark(
        fmt::format("{}: {} with scores that are not finite, counted as wrong: the model's "
                    "weights are broken, or it left the range of float",
                    task, counted(result.not_finite, "question")));
}

}  // namespace dofla::cli
