// The part of `dofla evaluate` that answers questions: --task, --task-data, --split, --limit,
// --letters.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "dofla/core/device.h"
#include "dofla/core/file.h"
#include "dofla/evaluate/answers.h"

namespace dofla::cli {

class TaskArguments {
 public:
  void add(CLI::App& app);  // after the options that go with text, which these exclude
  bool given() const { return !names_.empty(); }
  void run(const fs::path& model_folder, const Device& device, bool json) const;

 private:
  std::vector<std::string> names_;
  std::string data_, split_;
  int64_t limit_ = 0;  // 0: all questions
  std::optional<AnswerBy> letters_;
};

}  // namespace dofla::cli
