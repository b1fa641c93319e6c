// Where input comes from and output goes: pipes, standard input, folders that are not there yet,
// lines to leave out.
#include "tests/support/command_line.h"

namespace dofla {
namespace {

using test::ProcessResult;
using testing::HasSubstr;

class Places : public test::CommandLine {
 protected:
  // A line of bash with $DOFLA for the program and $MODEL for a fixture.
  ProcessResult bash(const std::string& line) const {
    return test::run_process({"/bin/bash", "-c", "cd " + scratch.path().string() + "; " + line},
                             {{"DOFLA", DOFLA_BINARY}, {"MODEL", fixture}});
  }
  std::string output_of(const std::string& line) const {
    const ProcessResult result = bash(line);
    EXPECT_EQ(result.exit_code, 0) << line << ": " << result.err;
    return result.out;
  }
  std::string ids(int sequences, int length = 24) const {
    Json all = Json::array();
    for (int b = 0; b < sequences; ++b) {
      all.push_back(Json::array());
      for (int t = 0; t < length; ++t) all.back().push_back((7 * t * (b + 1) + b) % 30);
    }
    return all.dump();
  }
};

constexpr const char* kText =
    R"({"text": "The river flows through the old town and into the sea."})";

TEST_F(Places, PipesAreTakenLikeFiles) {
  write("ids.json", ids(3));
  write("text.jsonl", kText);
  EXPECT_EQ(output_of("$DOFLA evaluate $MODEL --ids <(cat ids.json) --json"),
            output_of("$DOFLA evaluate $MODEL --ids ids.json --json"));
  EXPECT_EQ(output_of("cat ids.json | $DOFLA evaluate $MODEL --ids /dev/stdin --json"),
            output_of("$DOFLA evaluate $MODEL --ids ids.json --json"));
  const std::string expected = output_of("$DOFLA evaluate --data text.jsonl --json");
  EXPECT_EQ(output_of("$DOFLA evaluate --data <(cat text.jsonl) --json"), expected);
  EXPECT_EQ(output_of("$DOFLA evaluate --data <(gzip -c text.jsonl) --json"), expected);
  EXPECT_EQ(output_of("$DOFLA evaluate --data /dev/stdin --json <text.jsonl"), expected);
  output_of("$DOFLA dof $MODEL --ids ids.json --samples 8 --draws 1 --out dof.json");
  output_of("$DOFLA plan <(cat dof.json) --cost 4 --out plan.json");
  output_of(
      "$DOFLA distill $MODEL --ids <(cat ids.json) --plan <(cat plan.json) --steps 0 --held-out 1 "
      "--out student");
  EXPECT_EQ(load_json(scratch.path() / "student/plan.json"),
            load_json(scratch.path() / "plan.json"));
}

TEST_F(Places, ThePromptComesFromStandardInput) {
  const std::string command = "$DOFLA generate --temperature 0 --max-tokens 4 --json --prompt ";
  const auto ids_of = [&](const std::string& line) {
    return parse_json(output_of(line), "stdout")["ids"];
  };
  EXPECT_EQ(ids_of("printf 'The river' | " + command + "-"), ids_of(command + "'The river'"));
  EXPECT_EQ(output_of("printf 'The river' | $DOFLA tokenize --file - --json"),
            output_of("$DOFLA tokenize --text 'The river' --json"));
}

TEST_F(Places, FoldersOnTheWayAreCreatedAndSlashesIgnored) {
  write("ids.json", ids(3));
  const std::string distill =
      "$DOFLA distill $MODEL --ids ids.json --strategy fix --steps 0 "
      "--held-out 1 --out ";
  for (const char* out : {"lin/", "a/b/new"}) {
    output_of(distill + out);
    EXPECT_TRUE(fs::exists(scratch.path() / out / "config.json")) << out;
  }
  output_of("$DOFLA dof $MODEL --ids ids.json --samples 8 --draws 1 --out c/dof.json");
  EXPECT_TRUE(fs::exists(scratch.path() / "c/dof.json"));
  output_of("$DOFLA plan c/dof.json --out d/plan.json");
  EXPECT_TRUE(fs::exists(scratch.path() / "d/plan.json"));
}

TEST_F(Places, WhatCannotBeWrittenIsRefusedBeforeTheWork) {
  // The work would fail as well, but later: there is no such model.
  expect_failure({"dof", "/nowhere", "--out", "/proc/none/x"}, 1, "/proc/none: cannot create");
  expect_failure({"dof", "/nowhere", "--out", scratch.path()}, 1,
                 "is a folder; expected the name of a file to write");
  for (const char* command : {"distill", "finetune", "quantize"})
    expect_failure({command, "/nowhere", "--out", scratch.path()}, 1,
                   "exists already; choose another name or remove it");
  expect_failure({"finetune", "/nowhere", "--out", "/proc/none/x"}, 1, "/proc/none: cannot create");
  for (const char* command : {"dof", "distill", "finetune"})
    expect_failure({command, "/nowhere", "--out", ""}, 2, "expected a name, found an empty one");
}

TEST_F(Places, BadLinesAreLeftOutOnRequest) {
  write("text.jsonl", std::string(kText) + "\n");
  write("bad.jsonl", std::string("no\n") + kText + "\n{\"text\": \"\\ud800\"}\n");
  EXPECT_THAT(bash("$DOFLA evaluate --data bad.jsonl").err,
              HasSubstr("bad.jsonl:1: not valid JSON"));
  const ProcessResult result = bash("$DOFLA evaluate --data bad.jsonl --skip-bad-lines --json");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err,
              HasSubstr("left out 2 bad lines, the first: bad.jsonl:1: not valid JSON"));
  EXPECT_EQ(result.out, output_of("$DOFLA evaluate --data text.jsonl --json"));
}

TEST_F(Places, IdsOfSeveralLengthsAreNotTrainedOn) {
  const std::string file = write("ids.json", "[[1, 2, 3], [4, 5, 6], [7, 8], [1, 2, 3]]");
  for (const char* command : {"distill", "finetune"})
    expect_failure({command, fixture, "--ids", file, "--out", (scratch.path() / "out").string()}, 1,
                   "ids.json: sequence 2: 2 tokens, the first has 3");
  EXPECT_EQ(run({"evaluate", fixture, "--ids", file}).exit_code, 0);
}

TEST_F(Places, EvaluateSaysHowMuchItRead) {
  const ProcessResult result = run({"evaluate", "--length", "8"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("112 predicted in 16 sequences"));
  EXPECT_THAT(result.err,
              HasSubstr("the first 16 sequences of the text; --sequences T takes more"));
  const ProcessResult chosen = run({"evaluate", "--length", "8", "--sequences", "17"});
  EXPECT_THAT(chosen.out, HasSubstr("in 17 sequences"));
  EXPECT_THAT(chosen.err, testing::Not(HasSubstr("takes more")));
}

TEST_F(Places, OnlyThatFindsNothingSaysWhatThereIs) {
  const std::string suite =
      write("suite.json", R"({"length": 16, "held_out": 2, "costs": [4], "strategies": ["fix"],
          "losses": ["softmax"], "baselines": [], "steps": 1, "batch": 1})");
  expect_failure({"reproduce", suite, "--out", (scratch.path() / "out").string(), "--only", "zzz"},
                 1, "--only zzz finds none of the suite's runs: ");
}

}  // namespace
}  // namespace dofla
