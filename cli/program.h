// All commands with their options and help: one table for the command line (main.cc) and for
// Python, whose functions are the commands and whose keyword arguments are their options.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"

namespace dofla::cli {

class Program {
 public:
  Program();

  CLI::App& app() { return app_; }
  // The command that app() has parsed. Throws UsageError if it cannot be shared by several ranks.
  void run(const Group& group = {});

 private:
  CLI::App app_;
  void run(const Command& command, const Group& group) const;

  int threads_ = 0;  // 0: one a core
  std::vector<Command> commands_;
};

// Reads words as if they had been given to a shell. Throws UsageError, in the words of the parser,
// where they are wrong.
void parse(CLI::App& app, const std::vector<std::string>& words);

}  // namespace dofla::cli
