// How tokens are drawn and when that ends, for generate and for Python.
#pragma once

#include "cli/command.h"
#include "dofla/generate/generate.h"

namespace dofla::cli {

class DrawingOptions {
 public:
  // Adds --max-tokens, --temperature, --top-k, --top-p, --seed and --ignore-end.
  void add(CLI::App& app);
  GenerateOptions value() const;

 private:
  GenerateOptions options_;
  bool ignore_end_ = !GenerateOptions().stop_at_end_of_text;
};

}  // namespace dofla::cli
