// The part of `dofla evaluate` that asks for what stood in the prompt: --recall, --distances,
// --depths, --questions, --seed.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "cli/command.h"
#include "dofla/pipeline/evaluate.h"

namespace dofla::cli {

class RecallArguments {
 public:
  void add(CLI::App& app);  // after the options of text and tasks, some of which these exclude
  bool given() const { return given_; }
  // Beside a teacher, unless that is empty; with `exact` the model's attention is cut to these
  // keys.
  void run(const fs::path& model_folder, const std::string& teacher_folder,
           const std::optional<ExactKeys>& exact, const Device& device, const TextArguments& text,
           bool json, const Group& group) const;

 private:
  bool given_ = false;
  RecallOptions options_;
};

}  // namespace dofla::cli
