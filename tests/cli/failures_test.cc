// What the binary says when something is wrong: files, models, disks and pipes.
#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/command_line.h"

namespace dofla {
namespace {

using test::ProcessResult;
using testing::HasSubstr;

class CliFailures : public test::CommandLine {};

TEST_F(CliFailures, BadIds) {
  for (const std::string bad : {"[[1, 320000]]", "[[1, -1]]", "[[1, 1.5]]", "[]", "{}", "[[1, 2"}) {
    const std::string file = write("ids.json", bad);
    expect_failure({"evaluate", fixture, "--ids", file}, 1, "ids.json: ");
    expect_failure({"generate", fixture, "--ids", file, "--json"}, 1, "ids.json: ");
  }
  expect_failure({"evaluate", fixture, "--ids", write("ids.json", "[[1]]")}, 1, "fewer than the 2");
  expect_failure({"generate", fixture, "--ids", write("ids.json", "[[1], [2]]")}, 1,
                 "expected one sequence");
}

TEST_F(CliFailures, BadData) {
  expect_failure({"evaluate", "--data", write("a.txt", "")}, 1, "a.txt: empty");
  expect_failure({"evaluate", "--data", write("a.jsonl", "")}, 1, "a.jsonl: empty");
  expect_failure({"evaluate", "--data", write("a.jsonl", "{\"text\": \"a b c\"}\nno\n")}, 1,
                 "a.jsonl:2: ");
  expect_failure({"evaluate", "--data", write("a.txt.zst", "text")}, 1, "a.txt.zst: corrupt");
  expect_failure({"evaluate", "--data", "none.txt"}, 1, "none.txt: cannot open");
  expect_failure({"evaluate", "--data", write("a.pdf", "text")}, 1, "a.pdf: not a kind of text");
  expect_failure({"finetune", "--data", write("a.txt", "word"), "--out", scratch.path() / "out"}, 1,
                 "the text has 1 window of 2 tokens, and 16 are held out");
  expect_failure({"evaluate", "--length", "100000"}, 1, "more than the model's context");
  expect_failure({"tokenize", "--file", "none.txt"}, 1, "none.txt");
}

TEST_F(CliFailures, APromptLongerThanTheContext) {
  std::string words;
  for (int i = 0; i < 2000; ++i) words += "river ";
  expect_failure({"generate", "--prompt", words, "--json"}, 1, "the model's context of 512");
  expect_failure({"generate", fixture, "--ids",
                  write("ids.json", Json::array({std::vector<int>(5000, 1)}).dump())},
                 1, "context");
}

TEST_F(CliFailures, FoldersThatAreNoModel) {
  for (const std::string command : {"inspect", "evaluate", "generate"}) {
    expect_failure({command, scratch.path()}, 1, "no config.json");
    expect_failure({command, "/nowhere"}, 1, "/nowhere: not a folder");
    expect_failure({command, ""}, 1, "MODEL is an empty name");
  }
  expect_failure({"tokenize", scratch.path(), "--text", "a"}, 1, scratch.path());
}

TEST_F(CliFailures, BrokenModels) {
  const fs::path model = copy_of_model();
  const std::string weights = read_text(model / "model.safetensors");
  const std::string config = read_text(model / "config.json");
  const std::string ids = write("ids.json", "[[1, 2, 3]]");
  const auto expect_broken = [&](const std::string& part) {
    expect_failure({"inspect", model.string()}, 1, part);
    expect_failure({"evaluate", model.string(), "--ids", ids, "--json"}, 1, part);
    expect_failure({"generate", model.string(), "--ids", ids, "--json"}, 1, part);
  };
  for (const size_t size : {size_t{0}, size_t{5}, size_t{100}, weights.size() - 1}) {
    write_whole(model / "model.safetensors", std::string_view(weights).substr(0, size));
    expect_broken("model.safetensors: ");
  }
  fs::remove(model / "model.safetensors");
  expect_broken("no weights");
  write_whole(model / "model.safetensors", weights);

  for (const std::string& bad :
       {std::string("{"), std::string("\xff"), std::string("[]"), std::string(100000, '['),
        std::string("{\"model_type\": \"bert\"}")}) {
    write_whole(model / "config.json", bad);
    expect_broken("config.json: ");
  }
  Json no_heads = parse_json(config, "config");
  no_heads["n_head"] = 0;
  write_whole(model / "config.json", no_heads.dump());
  expect_broken("n_head");

  Json wider = parse_json(config, "config");  // the weights no longer have the shape it asks for
  wider["vocab_size"] = wider["vocab_size"].get<int64_t>() + 1;
  write_whole(model / "config.json", wider.dump());
  expect_failure({"evaluate", model.string(), "--ids", ids}, 1, "expected [");
}

TEST_F(CliFailures, FullDiskIsAnError) {
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"inspect"},
                                                    {"inspect", "--json"},
                                                    {"--help"},
                                                    {"--version"},
                                                    {"generate", "--max-tokens", "2"}}) {
    const ProcessResult result = run(arguments, {}, "/dev/full");
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.err, HasSubstr("dofla: cannot write to standard output"));
  }
}

TEST_F(CliFailures, AClosedPipeEndsQuietly) {
  const ProcessResult result = test::run_process(
      {"/bin/bash", "-c",
       fmt::format("'{}' tokenize --text a | true; exit ${{PIPESTATUS[0]}}", DOFLA_BINARY)});
  EXPECT_EQ(result.out, "");
  EXPECT_TRUE(result.exit_code == 128 + SIGPIPE || result.exit_code == 0) << result.exit_code;
  EXPECT_THAT(result.err, testing::Not(HasSubstr("dofla:")));
}

TEST_F(CliFailures, InterruptExitsWith130) {
  const ProcessResult result =
      test::run_process({"/bin/bash", "-c",
                         fmt::format("set -m; '{}' evaluate --sequences 100000 >/dev/null 2>&1 & "
                                     "sleep 0.3; kill -INT $!; wait $!",
                                     DOFLA_BINARY)});
  EXPECT_EQ(result.exit_code, 130);
}

}  // namespace
}  // namespace dofla
