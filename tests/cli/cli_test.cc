// The binary as a user meets it: what it prints, where, and with which exit code.
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dofla/checkpoint/safetensors.h"
#include "tests/support/command_line.h"

namespace dofla {
namespace {

using test::ProcessResult;
using testing::ElementsAre;
using testing::HasSubstr;

class Cli : public test::CommandLine {
 protected:
  static std::vector<std::string> keys(const Json& object) {
    std::vector<std::string> names;
    for (const auto& [name, value] : object.items()) names.push_back(name);
    return names;
  }
};

TEST_F(Cli, HelpListsEveryCommandWithALineEach) {
  const ProcessResult help = run({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_EQ(help.err, "");
  EXPECT_THAT(help.out, HasSubstr("Example:\n"));
  for (const std::string command :
       {"inspect", "tokenize", "dof", "sensitivity", "plan", "evaluate", "generate"}) {
    EXPECT_THAT(help.out, HasSubstr("\n  " + command + " "));
    const ProcessResult own = run({command, "--help"});
    EXPECT_EQ(own.exit_code, 0);
    EXPECT_THAT(own.out, HasSubstr("\n  dofla " + command)) << "its example";
    EXPECT_THAT(own.out, HasSubstr("--json"));
  }
}

TEST_F(Cli, HelpHasSections) {
  const auto place = [](const std::string& text, const std::string& line) {
    const size_t at = text.find(line);
    EXPECT_NE(at, std::string::npos) << line;
    return at;
  };
  for (const std::string command : {"distill", "finetune"}) {
    const std::string help = run({command, "--help"}).out;
    EXPECT_LT(place(help, "\nOptions:\n  -h,--help "), place(help, "\n  --json "));
    EXPECT_LT(place(help, "\n  --json "), place(help, "\nText:\n"));
    EXPECT_LT(place(help, "\nText:\n  --data "), place(help, "\nTraining:\n"));
    EXPECT_LT(place(help, "\nTraining:\n"), place(help, "\n  --seed "));
    EXPECT_LT(place(help, "\n  --seed "), place(help, "\nLog and checkpoints:\n  --log "));
  }
  EXPECT_THAT(run({"distill", "--help"}).out, HasSubstr("\nExact keys:\n  --keys "));
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

TEST_F(Cli, WordsThatAreNoneAreNamedWithTheClosestOne) {
  expect_failure({"distil"}, 2, "dofla: distil: no such command; did you mean distill? (see dofla");
  expect_failure({"convert"}, 2, "dofla: convert: no such command (see dofla --help)");
  expect_failure({"--verson"}, 2, "--verson: no such option; did you mean --version? (");
  expect_failure({"evaluate", "--lenght=64"}, 2,
                 "--lenght=64: no such option; did you mean --length? (see dofla evaluate --help)");
  expect_failure({"inspect", "--bogus"}, 2, "--bogus: no such option (see dofla inspect --help)");
  expect_failure({"inspect", "a", "b"}, 2, "b: unexpected argument (see dofla inspect --help)");
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
