// The reader of each task, for the registry in task.cc: one file a task.
#pragma once

#include "dofla/data/tasks/task.h"

namespace dofla {

std::vector<Question> read_piqa(const fs::path& file);
std::vector<Question> read_logiqa(const fs::path& file);
std::vector<Question> read_arc(const fs::path& file);
std::vector<Question> read_winogrande(const fs::path& file);
std::vector<Question> read_wsc(const fs::path& file);
std::vector<Question> read_mmlu(const fs::path& folder);

}  // namespace dofla
