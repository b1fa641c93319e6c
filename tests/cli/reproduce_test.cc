// dofla reproduce as a user meets it.
#include <csignal>

#include "dofla/core/file.h"
#include "tests/support/command_line.h"
#include "tests/support/fixtures.h"

namespace dofla {
namespace {

using test::ProcessResult;
using testing::HasSubstr;

class ReproduceCli : public test::CommandLine {
 protected:
  std::vector<std::string> reproduce(const std::string& contents,
                                     const std::vector<std::string>& more = {}) {
    const fs::path file = scratch.path() / "suite.json";
    write_whole(file, contents);
    std::vector<std::string> all = {"reproduce", file.string(), "--out", out};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  const std::string out = (scratch.path() / "out").string();
  // On the built-in model and text.
  const std::string suite =
      R"({"length": 16, "held_out": 2, "costs": [4], "strategies": ["fix", "dof"],
          "losses": ["softmax"], "baselines": ["performer"], "steps": 1, "batch": 1,
          "dof": {"samples": 16, "sequences": 2}, "tasks": {"names": ["wsc"]}})";
};

TEST_F(ReproduceCli, WritesTablesAndGoesOn) {
  const Json first = json(reproduce(suite, {"--only", "fix|performer"}));
  EXPECT_EQ(first["ran"], 2);
  EXPECT_THAT(first["teacher"].get<std::string>(), HasSubstr("wiki-mini"));
  const ProcessResult rest = run(reproduce(suite));
  EXPECT_EQ(rest.exit_code, 0) << rest.err;
  EXPECT_THAT(rest.out, HasSubstr("## Next-token loss at cost 4"));
  EXPECT_THAT(rest.err, HasSubstr("2 runs, 2 done before"));
  EXPECT_THAT(rest.err, HasSubstr("tasks are skipped"));
  const std::string markdown = read_text(fs::path(out) / "tables.md");
  EXPECT_THAT(markdown, HasSubstr("wiki-mini: DoF"));
  EXPECT_THAT(read_text(fs::path(out) / "tables.html"), HasSubstr("paper, GPT-2"));
}

TEST_F(ReproduceCli, StoppedByASignalItGoesOnToTheSameFeatures) {
  const std::string longer =
      R"({"length": 16, "held_out": 2, "costs": [4], "strategies": ["fix"], "losses": ["softmax"],
          "baselines": ["performer"], "steps": 400, "batch": 1,
          "dof": {"samples": 16, "sequences": 2}})";
  const fs::path features = fs::path("features") / "c4-fix-softmax-s1.safetensors";
  std::vector<std::string> command = reproduce(longer);
  ASSERT_EQ(run(command).exit_code, 0);
  const std::string expected = read_text(out / features);
  command.back() = out + "-cut";
  const fs::path training = fs::path(command.back()) / "training";
  const auto ready = [&] {
    if (!fs::exists(training) || fs::is_empty(training)) return false;
    expect_failure(command, 1, "is at work on it");
    return true;
  };
  const ProcessResult stopped =
      test::run_process(joined({DOFLA_BINARY}, command), {}, {}, {SIGTERM, ready});
  EXPECT_EQ(stopped.exit_code, 128 + SIGTERM) << stopped.err;
  EXPECT_THAT(stopped.err, HasSubstr("the same command continues it"));
  EXPECT_FALSE(fs::exists(command.back() / features));
  const ProcessResult resumed = run(command);
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_EQ(read_text(command.back() / features), expected);
}

TEST_F(ReproduceCli, AFailedRunIsListedAndTheExitCodeSaysSo) {
  const std::string diverging =
      R"({"length": 8, "held_out": 1, "costs": [2], "strategies": ["fix"], "losses": ["softmax"],
          "baselines": ["performer"], "steps": 60, "batch": 1,
          "learning_rates": {"softmax": {"z": 1000, "alpha": 1000}},
          "dof": {"samples": 8, "sequences": 1}})";
  const ProcessResult result = run(reproduce(diverging, {"--json"}));
  EXPECT_EQ(result.exit_code, 1);
  const Json outcome = parse_json(result.out, "stdout");
  EXPECT_EQ(outcome["ran"], 3);
  ASSERT_EQ(outcome["failed"].size(), 1u);
  EXPECT_EQ(outcome["failed"][0]["run"], "c2-fix-softmax-s1");
  EXPECT_THAT(result.err, HasSubstr("dofla: 1 run failed: c2-fix-softmax-s1"));
  EXPECT_THAT(read_text(fs::path(out) / "tables.md"), HasSubstr("## Runs that failed"));
}

TEST_F(ReproduceCli, BadInputIsOneLine) {
  expect_failure(reproduce(R"({"steps": "many"})"), 1,
                 "suite.json: steps: expected a whole number");
  expect_failure(reproduce("{}", {"--teacher", (scratch.path() / "none").string()}), 1, "none");
  expect_failure(reproduce("{}", {"--data", "none.txt"}), 1, "none.txt");
  expect_failure(reproduce("{}", {"--only", "("}), 2, "not a regular expression");
  expect_failure({"reproduce", (scratch.path() / "no.json").string(), "--out", out}, 1, "no.json");
  expect_failure({"reproduce", "suite.json"}, 2, "--out");
  write_whole(scratch.path() / "file", "");
  std::vector<std::string> blocked = reproduce(suite);
  blocked.back() = (scratch.path() / "file").string();
  blocked.push_back("--json");
  const ProcessResult result = run(blocked);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("file: cannot create this folder"));
}

}  // namespace
}  // namespace dofla
