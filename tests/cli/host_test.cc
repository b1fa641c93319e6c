#include "cli/host.h"

#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/invocation.h"
#include "cli/program.h"
#include "cli/usage_error.h"
#include "tests/support/fixtures.h"

namespace dofla::cli {
namespace {

const std::string kModel = std::string(DOFLA_SOURCE_DIR) + "/tests/models/stories260K";

// A command in a host of its own, and what that was given.
struct Call {
  std::string printed;
  std::vector<std::string> remarks;
  std::atomic<bool> stop = false;
  int64_t updates = 0;

  void run(const std::vector<std::string>& words) {
    const Host host = {.print = [&](std::string_view text) { printed += text; },
                       .remark = [&](std::string_view line) { remarks.emplace_back(line); },
                       .progress = Progress([&](const ProgressUpdate&) { ++updates; }, &stop),
                       .command_line = command_line_of(words)};
    const Hosted hosted(host);
    EXPECT_EQ(command_line(), host.command_line);
    Program program;
    parse(program.app(), words);
    program.run();
  }
};

TEST(Host, TakesWhatCommandsSay) {
  const test::ScratchFolder scratch;
  const std::string text = (scratch.path() / "text.jsonl").string();
  write_whole(text, "{\"text\": \"One day a cat saw a bird in the park.\"}\nno JSON\n");
  Call call;
  call.run({"evaluate", kModel, "--data", text, "--skip-bad-lines", "--json"});
  EXPECT_GT(nlohmann::json::parse(call.printed).at("tokens"), 5);
  ASSERT_EQ(call.remarks.size(), 1u);
  EXPECT_NE(call.remarks[0].find("left out 1 bad line"), std::string::npos);
  EXPECT_GT(call.updates, 0);
  EXPECT_EQ(current_host(), nullptr);
}

TEST(Host, CanStopACommandThatTheProgramLeavesAtOnce) {
  Call call;
  call.stop = true;
  EXPECT_THROW(call.run({"evaluate", kModel, "--sequences", "2"}), Cancelled);
  EXPECT_EQ(call.printed, "");
  EXPECT_EQ(current_host(), nullptr);
}

TEST(Host, WrongWordsAreThoseOfTheParser) {
  Call call;
  try {
    call.run({"dof", "--samples", "0"});
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "--samples: expected a whole number from 1 up, found 0");
  }
}

TEST(Invocation, CanBeGivenToAShellAgain) {
  EXPECT_EQ(command_line_of({"dof", "a b", "it's", "--x=1", ""}),
            "dofla dof 'a b' 'it'\\''s' --x=1 ''");
}

}  // namespace
}  // namespace dofla::cli
