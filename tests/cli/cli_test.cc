// The binary as a user meets it: what it prints, where, and with which exit code.
#include <algorithm>
#include <cmath>
#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dofla/checkpoint/safetensors.h"
#include "dofla/core/json.h"
#include "tests/support/fixtures.h"
#include "tests/support/process.h"

namespace dofla {
namespace {

using test::ProcessResult;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

class Cli : public testing::Test {
 protected:
  static ProcessResult run(std::vector<std::string> arguments,
                           const std::map<std::string, std::string>& environment = {},
                           const std::string& out_file = {}) {
    arguments.insert(arguments.begin(), DOFLA_BINARY);
    return test::run_process(arguments, environment, out_file);
  }

  // Runs a command that must succeed with exactly one JSON object on standard output.
  static Json json(std::vector<std::string> arguments) {
    arguments.push_back("--json");
    const ProcessResult result = run(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 1);
    return parse_json(result.out, "stdout");
  }

  static std::vector<std::string> keys(const Json& object) {
    std::vector<std::string> names;
    for (const auto& [name, value] : object.items()) names.push_back(name);
    return names;
  }

  // One line "dofla: …" on standard error, nothing on standard output.
  static void expect_failure(const std::vector<std::string>& arguments, int exit_code,
                             const std::string& part) {
    const ProcessResult result = run(arguments);
    EXPECT_EQ(result.exit_code, exit_code) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, StartsWith("dofla: "));
    EXPECT_THAT(result.err, HasSubstr(part));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_EQ(result.err.back(), '\n');
  }

  std::string write(const std::string& name, std::string_view contents) {
    write_whole(scratch.path() / name, contents);
    return (scratch.path() / name).string();
  }

  // A fixture model to break.
  fs::path copy_of_model() {
    const fs::path copy = scratch.path() / "model";
    fs::remove_all(copy);
    fs::copy(test::fixtures() / "gpt2", copy);
    return copy;
  }

  const std::string fixture = (test::fixtures() / "gpt2").string();
  test::ScratchFolder scratch;
};

TEST_F(Cli, HelpListsEveryCommandWithALineEach) {
  const ProcessResult help = run({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_EQ(help.err, "");
  EXPECT_THAT(help.out, HasSubstr("Example:\n"));
  for (const std::string command : {"inspect", "tokenize", "dof", "plan", "evaluate", "generate"}) {
    EXPECT_THAT(help.out, HasSubstr("\n  " + command + " "));
    const ProcessResult own = run({command, "--help"});
    EXPECT_EQ(own.exit_code, 0);
    EXPECT_THAT(own.out, HasSubstr("\n  dofla " + command)) << "its example";
    EXPECT_THAT(own.out, HasSubstr("--json"));
  }
}

TEST_F(Cli, VersionIsOneLine) {
  const ProcessResult result = run({"--version"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, testing::MatchesRegex("dofla [0-9]+\\.[0-9]+\\.[0-9]+\n"));
}

TEST_F(Cli, NoCommandPrintsHelpAndFails) {
  const ProcessResult result = run({});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, HasSubstr("Usage: dofla"));
}

TEST_F(Cli, WrongArgumentsExitWithTwoAndAHint) {
  const std::vector<std::vector<std::string>> wrong = {
      {"convert"},
      {"inspect", "--bogus"},
      {"inspect", "a", "b"},
      {"tokenize"},
      {"tokenize", "--text", "a", "--file", "b"},
      {"tokenize", "--text"},
      {"evaluate", "--data", "a.txt", "--ids", "b"},
      {"evaluate", "--length", "1"},
      {"evaluate", "--sequences", "0"},
      {"generate", "--prompt", "a", "--ids", "b"},
      {"generate", "--max-tokens", "0"},
      {"generate", "--max-tokens", "9223372036854775808"},
      {"generate", "--max-tokens", "5x"},
      {"generate", "--temperature", "-1"},
      {"generate", "--temperature", "nan"},
      {"generate", "--top-k", "-1"},
      {"generate", "--top-p", "0"},
      {"generate", "--top-p", "1.5"},
      {"generate", "--seed", "-1"},
      {"inspect", "--threads", "0"},
      {"--threads", "two", "inspect"},
  };
  for (const auto& arguments : wrong) expect_failure(arguments, 2, "--help)");
}

TEST_F(Cli, InspectJson) {
  const Json found = json({"inspect"});
  const Json config = load_json(test::assets() / "wiki-mini/config.json");
  EXPECT_EQ(found.size(), 11u);
  EXPECT_EQ(found["model_type"], config["model_type"]);
  EXPECT_EQ(found["layers"], config["n_layer"]);
  EXPECT_EQ(found["heads"], config["n_head"]);
  EXPECT_EQ(found["kv_heads"], config["n_head"]);
  EXPECT_EQ(found["head_size"], config["n_embd"].get<int64_t>() / config["n_head"].get<int64_t>());
  EXPECT_EQ(found["width"], config["n_embd"]);
  EXPECT_EQ(found["vocabulary"], config["vocab_size"]);
  EXPECT_EQ(found["context"], config["n_positions"]);
  EXPECT_EQ(found["dtype"], "BF16");
  const Safetensors file(test::assets() / "wiki-mini/model.safetensors");
  int64_t parameters = 0;
  for (const std::string& name : file.names()) parameters += file.tensor(name).count();
  EXPECT_EQ(found["parameters"], parameters);
  EXPECT_EQ(found["bytes"], 2 * parameters);
}

TEST_F(Cli, InspectCountsATiedHeadOnce) {
  const fs::path model = copy_of_model();
  const Safetensors file(fs::path(fixture) / "model.safetensors");
  NamedTensors tensors;
  for (const std::string& name : file.names()) tensors.emplace_back(name, file.tensor(name));
  const auto embedding = std::find_if(tensors.begin(), tensors.end(), [](const auto& named) {
    return named.first.ends_with("wte.weight");
  });
  ASSERT_NE(embedding, tensors.end());
  const Tensor head = embedding->second;
  tensors.emplace_back("lm_head.weight", head);
  tensors.emplace_back("h.0.attn.bias", Tensor::zeros({1, 1, 4, 4}));
  write_safetensors(model / "model.safetensors", tensors);
  EXPECT_EQ(json({"inspect", model.string()}), json({"inspect", fixture}));
}

TEST_F(Cli, TokenizeJson) {
  const Json text = json({"tokenize", "--text", "The river flows."});
  EXPECT_THAT(keys(text), ElementsAre("ids"));
  EXPECT_GT(text["ids"].size(), 2u);
  EXPECT_EQ(json({"tokenize", "--file", write("a.txt", "The river flows.")}), text);
  EXPECT_EQ(json({"tokenize", "--text", ""})["ids"], Json::array());
}

TEST_F(Cli, EvaluateIdsJson) {
  const Json found = json({"evaluate", fixture, "--ids", write("ids.json", "[[1, 2, 3], [4, 5]]")});
  EXPECT_THAT(keys(found), ElementsAre("loss", "perplexity", "sequences", "tokens"));
  EXPECT_EQ(found["tokens"], 3);
  ASSERT_EQ(found["sequences"].size(), 2u);
  EXPECT_THAT(keys(found["sequences"][0]), ElementsAre("loss", "tokens"));
  EXPECT_EQ(found["sequences"][0]["tokens"], 2);
  const double first = found["sequences"][0]["loss"], second = found["sequences"][1]["loss"];
  EXPECT_DOUBLE_EQ(found["loss"].get<double>(), (2 * first + second) / 3);
  EXPECT_DOUBLE_EQ(found["perplexity"].get<double>(), std::exp(found["loss"].get<double>()));
}

// Trained to 2.92 on held-out articles; the built-in text is of the same kind.
TEST_F(Cli, EvaluateBuiltInModelOnBuiltInText) {
  const Json found = json({"evaluate", "--sequences", "8"});
  EXPECT_EQ(found["tokens"], 8 * 511);
  EXPECT_NEAR(found["loss"].get<double>(), 2.92, 0.4);
}

TEST_F(Cli, EvaluateTextOfEachKindAlike) {
  const std::string text = "A river is a stream of water. It flows to the sea.";
  const Json plain = json({"evaluate", "--data", write("a.txt", text), "--length", "8"});
  EXPECT_EQ(
      json({"evaluate", "--data", write("a.jsonl", Json{{"text", text}}.dump()), "--length", "8"}),
      plain);
  EXPECT_EQ(plain["sequences"][0]["tokens"], 7);
}

TEST_F(Cli, GenerateJson) {
  const Json found =
      json({"generate", "--prompt", "The river", "--max-tokens", "8", "--temperature", "0"});
  EXPECT_THAT(keys(found), ElementsAre("ids", "text", "tokens_per_second"));
  EXPECT_EQ(found["ids"].size(), 8u);
  EXPECT_GT(found["tokens_per_second"].get<double>(), 0);
  const ProcessResult streamed =
      run({"generate", "--prompt", "The river", "--max-tokens", "8", "--temperature", "0"});
  EXPECT_EQ(streamed.out, "The river" + found["text"].get<std::string>() + "\n");
}

TEST_F(Cli, GenerateWithoutATokenizer) {
  const std::string ids = write("ids.json", "[[1, 2, 3]]");
  const Json found = json({"generate", fixture, "--ids", ids, "--max-tokens", "3"});
  EXPECT_TRUE(found["text"].is_null());
  const ProcessResult streamed = run({"generate", fixture, "--ids", ids, "--max-tokens", "3"});
  EXPECT_EQ(streamed.exit_code, 0) << streamed.err;
  EXPECT_EQ(streamed.out,
            fmt::format("{} \n", fmt::join(found["ids"].get<std::vector<int>>(), " ")));
  expect_failure({"generate", fixture, "--prompt", "a"}, 1, "tokenizer.json");
}

TEST_F(Cli, SeedsAndThreadsDecideNothingElse) {
  const std::vector<std::string> arguments = {"generate", "--prompt", "The", "--max-tokens",
                                              "12",       "--seed",   "5"};
  std::vector<std::string> one_thread = arguments;
  one_thread.insert(one_thread.end(), {"--threads", "1"});
  EXPECT_EQ(json(arguments)["ids"], json(one_thread)["ids"]);
}

TEST_F(Cli, NumbersThatAreNotFiniteAreNull) {
  const fs::path model = copy_of_model();
  const Safetensors file(fs::path(fixture) / "model.safetensors");
  NamedTensors tensors;
  for (const std::string& name : file.names()) {
    Tensor tensor = file.tensor(name).clone();
    if (name.ends_with("ln_f.weight")) tensor.data<float>()[0] = std::nanf("");
    tensors.emplace_back(name, tensor);
  }
  write_safetensors(model / "model.safetensors", tensors);
  const std::string ids = write("ids.json", "[[1, 2, 3]]");
  const Json found = json({"evaluate", model.string(), "--ids", ids});
  EXPECT_TRUE(found["loss"].is_null());
  EXPECT_TRUE(found["perplexity"].is_null());
  expect_failure({"generate", model.string(), "--ids", ids, "--json"}, 1, "logit of token");
}

TEST_F(Cli, BadIds) {
  for (const std::string bad : {"[[1, 320000]]", "[[1, -1]]", "[[1, 1.5]]", "[]", "{}", "[[1, 2"}) {
    const std::string file = write("ids.json", bad);
    expect_failure({"evaluate", fixture, "--ids", file}, 1, "ids.json: ");
    expect_failure({"generate", fixture, "--ids", file, "--json"}, 1, "ids.json: ");
  }
  expect_failure({"evaluate", fixture, "--ids", write("ids.json", "[[1]]")}, 1, "fewer than the 2");
  expect_failure({"generate", fixture, "--ids", write("ids.json", "[[1], [2]]")}, 1,
                 "expected one sequence");
}

TEST_F(Cli, BadData) {
  expect_failure({"evaluate", "--data", write("a.txt", "")}, 1, "a.txt: empty");
  expect_failure({"evaluate", "--data", write("a.jsonl", "")}, 1, "a.jsonl: empty");
  expect_failure({"evaluate", "--data", write("a.jsonl", "{\"text\": \"a b c\"}\nno\n")}, 1,
                 "a.jsonl:2: ");
  expect_failure({"evaluate", "--data", write("a.txt.zst", "text")}, 1, "a.txt.zst: corrupt");
  expect_failure({"evaluate", "--data", "none.txt"}, 1, "none.txt: cannot open");
  expect_failure({"evaluate", "--data", write("a.pdf", "text")}, 1, "a.pdf: not a kind of text");
  expect_failure({"evaluate", "--length", "100000"}, 1, "more than the model's context");
  expect_failure({"tokenize", "--file", "none.txt"}, 1, "none.txt");
}

TEST_F(Cli, APromptLongerThanTheContext) {
  std::string words;
  for (int i = 0; i < 2000; ++i) words += "river ";
  expect_failure({"generate", "--prompt", words, "--json"}, 1, "the model's context of 512");
  expect_failure({"generate", fixture, "--ids",
                  write("ids.json", Json::array({std::vector<int>(5000, 1)}).dump())},
                 1, "context");
}

TEST_F(Cli, FoldersThatAreNoModel) {
  for (const std::string command : {"inspect", "evaluate", "generate"}) {
    expect_failure({command, scratch.path()}, 1, "no config.json");
    expect_failure({command, "/nowhere"}, 1, "/nowhere: not a folder");
    expect_failure({command, ""}, 1, "MODEL is an empty name");
  }
  expect_failure({"tokenize", scratch.path(), "--text", "a"}, 1, scratch.path());
}

TEST_F(Cli, BrokenModels) {
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

TEST_F(Cli, FullDiskIsAnError) {
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

TEST_F(Cli, AClosedPipeEndsQuietly) {
  const ProcessResult result = test::run_process(
      {"/bin/bash", "-c",
       fmt::format("'{}' tokenize --text a | true; exit ${{PIPESTATUS[0]}}", DOFLA_BINARY)});
  EXPECT_EQ(result.out, "");
  EXPECT_TRUE(result.exit_code == 128 + SIGPIPE || result.exit_code == 0) << result.exit_code;
  EXPECT_THAT(result.err, testing::Not(HasSubstr("dofla:")));
}

TEST_F(Cli, InterruptExitsWith130) {
  const ProcessResult result = test::run_process(
      {"/bin/bash", "-c",
       fmt::format("set -m; '{}' evaluate >/dev/null 2>&1 & sleep 0.3; kill -INT $!; wait $!",
                   DOFLA_BINARY)});
  EXPECT_EQ(result.exit_code, 130);
}

TEST_F(Cli, AssetsAreFoundWhereTheUserSays) {
  const ProcessResult missing = run({"inspect"}, {{"DOFLA_ASSETS", scratch.path()}});
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_THAT(missing.err, HasSubstr("DOFLA_ASSETS"));
  fs::copy(fixture, scratch.path() / "wiki-mini");
  const ProcessResult found = run({"inspect", "--json"}, {{"DOFLA_ASSETS", scratch.path()}});
  EXPECT_EQ(found.exit_code, 0);
  EXPECT_EQ(parse_json(found.out, "stdout"), json({"inspect", fixture}));
}

TEST_F(Cli, AnInstalledBinaryFindsItsAssets) {
  fs::create_directories(scratch.path() / "bin");
  fs::create_directories(scratch.path() / "share/dofla");
  fs::copy(DOFLA_BINARY, scratch.path() / "bin/dofla");
  fs::copy(fixture, scratch.path() / "share/dofla/wiki-mini");
  const ProcessResult found =
      test::run_process({(scratch.path() / "bin/dofla").string(), "inspect", "--json"});
  EXPECT_EQ(found.exit_code, 0) << found.err;
  EXPECT_EQ(parse_json(found.out, "stdout"), json({"inspect", fixture}));
}

}  // namespace
}  // namespace dofla
