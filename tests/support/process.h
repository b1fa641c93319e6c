// Runs a program as a user does and catches what it says.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace dofla::test {

struct ProcessResult {
  int exit_code = -1;  // −signal if a signal ended it
  std::string out;
  std::string err;
};

// Standard input is empty. `environment` is added to the caller's. An `out_file` takes standard
// output in place of ProcessResult::out.
ProcessResult run_process(const std::vector<std::string>& command,
                          const std::map<std::string, std::string>& environment = {},
                          const std::string& out_file = {});

}  // namespace dofla::test
