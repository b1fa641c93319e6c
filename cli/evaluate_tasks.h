// The part of `dofla evaluate` that answers questions: --task, --task-data, --split, --limit,
// --letters.
#pragma once

#include <CLI/CLI.hpp>

#include "dofla/core/device.h"
#include "dofla/core/file.h"
#include "dofla/pipeline/evaluate.h"

namespace dofla::cli {

class TaskArguments {
 public:
  void add(CLI::App& app);  // after the options that go with text, which these exclude
  bool given() const { return !selection_.names.empty(); }
  void run(const fs::path& model_folder, const Device& device, bool json, const Group& group) const;

 private:
  TaskSelection selection_;
};

}  // namespace dofla::cli
