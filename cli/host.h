// What surrounds the commands of a thread, where that is not a terminal: another program that calls
// them, such as Python, or a rank that leaves the talking to the first one. It takes over what they
// print, remark and tell of their progress.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "dofla/core/progress.h"

namespace dofla::cli {

struct Host {
  std::function<void(std::string_view text)> print;   // results
  std::function<void(std::string_view line)> remark;  // what the program writes to standard error
  // With the flag by which commands are stopped. Left out: nobody is told, signals stop them.
  std::optional<Progress> progress = {};
  std::string command_line;  // that would do the same
};

// While it lives, commands that this thread runs have this host.
class Hosted {
 public:
  explicit Hosted(const Host& host);
  ~Hosted();
  Hosted(const Hosted&) = delete;
  Hosted& operator=(const Hosted&) = delete;

 private:
  const Host* before_;
};

const Host* current_host();  // null in the program itself

}  // namespace dofla::cli
