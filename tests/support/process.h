// Runs a program as a user does and catches what it says.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace dofla::test {

struct ProcessResult {
  int exit_code = -1;  // −signal if a signal ended it
  std::string out;
  std::string err;
};

// A signal for the program, sent once when `ready` says so; it is asked every millisecond.
struct ProcessSignal {
  int number = 0;
  std::function<bool()> ready;
};

// Standard input is empty. `environment` is added to the caller's. An `out_file` takes standard
// output in place of ProcessResult::out.
ProcessResult run_process(const std::vector<std::string>& command,
                          const std::map<std::string, std::string>& environment = {},
                          const std::string& out_file = {}, const ProcessSignal& signal = {});

}  // namespace dofla::test
