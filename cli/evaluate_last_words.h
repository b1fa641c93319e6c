// The part of `dofla evaluate` that asks for the last words of texts: --last-words.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "dofla/core/device.h"
#include "dofla/core/file.h"
#include "dofla/distributed/group.h"

namespace dofla::cli {

class LastWordsArgument {
 public:
  void add(CLI::App& app);  // after the options of text, tasks and recall, which this excludes
  bool given() const { return !file_.empty(); }
  void run(const fs::path& model_folder, const Device& device, bool json, const Group& group) const;

 private:
  std::string file_;
};

}  // namespace dofla::cli
