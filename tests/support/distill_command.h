// dofla distill on a tiny model and token ids.
#pragma once

#include "dofla/core/file.h"
#include "tests/support/command_line.h"
#include "tests/support/fixtures.h"

namespace dofla::test {

class DistillCommand : public CommandLine {
 protected:
  const std::string model = (fixtures() / "gpt2").string();
  const std::string out = (scratch.path() / "student").string();

  std::string ids() {
    Json sequences = Json::array();
    for (int b = 0; b < 8; ++b) {
      sequences.push_back(Json::array());
      for (int t = 0; t < 24; ++t) sequences.back().push_back((7 * t * (b + 1) + b) % 30);
    }
    const fs::path file = scratch.path() / "ids.json";
    write_whole(file, sequences.dump());
    return file.string();
  }

  // Without a word on how many features the heads get.
  std::vector<std::string> bare(const std::vector<std::string>& more = {}) {
    return joined({"distill", model, "--ids", ids(), "--batch", "2", "--held-out", "2"}, more);
  }
  std::vector<std::string> distill(const std::vector<std::string>& more = {}) {
    return joined(bare({"--cost", "6", "--strategy", "fix"}), more);
  }
};

}  // namespace dofla::test
