// What the commands that answer questions have in common: names of tasks on the command line, and
// accuracies in tables.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "cli/output.h"
#include "dofla/data/tasks/task_result.h"

namespace dofla::cli {

CLI::Validator task_name();  // one of those that task_names() lists
std::string task_names();    // "piqa, logiqa, …"

std::string percent(const Accuracy& accuracy);  // "52.3 ± 1.2 %"

// A line each on questions that were cut and on scores that are not finite, if there are any.
void remark_on(const std::string& task, const TaskResult& result, int64_t context);
void remark_on_truncated(const std::string& what, int64_t questions, int64_t context);

}  // namespace dofla::cli
