// The dofla binary as a user meets it.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dofla/core/json.h"
#include "tests/support/process.h"

namespace dofla::test {

class CommandLine : public testing::Test {
 protected:
  static ProcessResult run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), DOFLA_BINARY);
    return run_process(arguments);
  }

  static Json json(std::vector<std::string> arguments) {
    arguments.push_back("--json");
    const ProcessResult result = run(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return parse_json(result.out, "stdout");
  }

  // Nothing on standard output, one line on standard error.
  static void expect_failure(const std::vector<std::string>& arguments, int exit_code,
                             const std::string& part) {
    const ProcessResult result = run(arguments);
    EXPECT_EQ(result.exit_code, exit_code) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, testing::StartsWith("dofla: "));
    EXPECT_THAT(result.err, testing::HasSubstr(part));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
};

}  // namespace dofla::test
