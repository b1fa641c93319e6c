// --compare of the commands that make a student: when it is there, it is compared with its teacher
// as dofla compare --suite quick does, on the windows that were held out.
#pragma once

#include <atomic>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include "dofla/data/windows.h"
#include "dofla/fidelity/fidelity.h"

namespace dofla::cli {

class ComparePage {
 public:
  CLI::Option* add(CLI::App& app);
  // Before the work: throws Error if the page could not be written or prompts not be made.
  void prepare(const Checkpoint& teacher) const;

  // Writes the page, if one was asked for, and returns what it says. Stopped, it says so and leaves
  // the page out: the student is there.
  std::optional<Verdict> write(const Checkpoint& teacher, const std::string& student,
                               const WindowSet& held_out, const Device& device,
                               const std::atomic<bool>* stop) const;

 private:
  std::string file_;
};

// What a table shows of it, and where to look further.
std::string verdict_lines(const std::optional<Verdict>& verdict, int columns);

}  // namespace dofla::cli
