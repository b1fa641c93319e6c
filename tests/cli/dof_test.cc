// dofla dof and dofla plan as a user meets them.
#include <algorithm>
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dofla/core/file.h"
#include "dofla/core/json.h"
#include "tests/support/command_line.h"
#include "tests/support/fixtures.h"

namespace dofla {
namespace {

using test::ProcessResult;
using testing::HasSubstr;
using testing::StartsWith;

class DofCli : public test::CommandLine {
 protected:
  // Two sequences that the fixture's vocabulary has.
  std::string ids() {
    Json sequences = Json::array();
    for (int b = 0; b < 2; ++b) {
      sequences.push_back(Json::array());
      for (int t = 0; t < 20; ++t) sequences.back().push_back((7 * t + 3 * b) % 30);
    }
    return write("ids.json", sequences.dump());
  }

  std::vector<std::string> dof(std::vector<std::string> more = {}) {
    std::vector<std::string> all = {"dof",       fixture, "--ids",   ids(),
                                    "--samples", "24",    "--draws", "3"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  std::string saved_table() {
    EXPECT_EQ(run(dof({"--out", table})).exit_code, 0);
    return table;
  }

  const std::string table = (scratch.path() / "dof.json").string();
  const std::string plan = (scratch.path() / "plan.json").string();
};

TEST_F(DofCli, PrintsATableWithTheLargestHeadOfEachLayerMarked) {
  const ProcessResult result = run(dof());
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const Json config = load_json(test::fixtures() / "gpt2" / "config.json");
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '*'),
            config["n_layer"].get<int64_t>());
  EXPECT_THAT(result.out, HasSubstr("balanced coordinates, λ = 2^-4"));
}

// A single draw tells nothing of its spread, and ± 0 would say that it did.
TEST_F(DofCli, ASingleDrawHasNoSpread) {
  EXPECT_THAT(run(dof({"--out", table})).out, HasSubstr(" ± "));
  EXPECT_THAT(run({"plan", table, "--strategy", "dof", "--cost", "4"}).out, HasSubstr(" ± "));
  std::vector<std::string> one = dof({"--out", table});
  *(std::ranges::find(one, "--draws") + 1) = "1";
  EXPECT_THAT(run(one).out, testing::Not(HasSubstr("±")));
  EXPECT_THAT(run({"plan", table, "--strategy", "dof", "--cost", "4"}).out,
              testing::Not(HasSubstr("±")));
}

TEST_F(DofCli, JsonHasEveryHead) {
  const Json config = load_json(test::fixtures() / "gpt2" / "config.json");
  const Json result = json(dof({"--lambda", "2^-4", "--gram", "max"}));
  EXPECT_EQ(result["gram"], "max");
  EXPECT_EQ(result["lambda"], 0.0625);
  EXPECT_EQ(result["samples"], 24);
  EXPECT_EQ(result["draws"], 3);
  ASSERT_EQ(result["layers"].size(), config["n_layer"].get<size_t>());
  for (const Json& layer : result["layers"]) {
    ASSERT_EQ(layer["heads"].size(), config["n_head"].get<size_t>());
    double largest = 0;
    for (const Json& head : layer["heads"]) largest = std::max(largest, head["dof"].get<double>());
    EXPECT_EQ(layer["dof"].get<double>(), largest);
    EXPECT_FALSE(layer["heads"][0].contains("spectra"));
  }
}

TEST_F(DofCli, SavesATableThatAnswersForOtherLambdas) {
  saved_table();
  const Json again = json(dof({"--lambda", "2^-4"}));
  const Json planned = json({"plan", table, "--lambda", "0.0625", "--strategy", "fix"});
  EXPECT_EQ(planned["lambda"], 0.0625);
  EXPECT_EQ(load_json(table)["layers"].size(), again["layers"].size());
  EXPECT_TRUE(load_json(table)["layers"][0]["heads"][0].contains("spectra"));
}

TEST_F(DofCli, PlansEveryStrategyWithinItsBudget) {
  saved_table();
  for (const std::string strategy : {"fix", "dof", "dof-clip", "dof-head"}) {
    std::vector<std::string> asked = {"plan",       table,    "--cost", "10",
                                      "--strategy", strategy, "--out",  plan};
    if (strategy == "dof-head") asked.insert(asked.end(), {"--power", "0.5"});
    const Json result = json(asked);
    EXPECT_EQ(result["strategy"], strategy);
    EXPECT_EQ(result["cost"], 10);
    const auto layers = static_cast<int64_t>(result["dims"].size());
    int64_t sum = 0;
    for (const Json& M : result["dims"]) {
      EXPECT_GE(M.get<int64_t>(), 1);
      sum += M.get<int64_t>();
    }
    EXPECT_LE(2 * sum, 2 * layers * 10 + layers);
    EXPECT_EQ(result.contains("heads"), strategy == "dof-head");
    EXPECT_EQ(load_json(plan), result);
  }
}

TEST_F(DofCli, PrintsTheBoundOfTheTheorem) {
  saved_table();
  const Json result = json({"plan", table, "--bound", "--delta", "0.1", "--t", "0.5"});
  const Json measured = json(dof());
  for (size_t s = 0; s < result["bound"].size(); ++s) {
    const double N = measured["layers"][s]["dof"];
    const double bound = 16 * N * std::log(64 * N / (0.1 * 0.25));
    EXPECT_NEAR(result["bound"][s].get<double>(), bound, 1);
  }
  EXPECT_THAT(run({"plan", table, "--bound"}).out, HasSubstr("The theorem"));
  EXPECT_THAT(run({"plan", table, "--bound"}).out, HasSubstr("dofla dof --errors"));
}

TEST_F(DofCli, BadInputIsOneLine) {
  expect_failure(dof({"--lambda", "0"}), 2, "positive");
  expect_failure(dof({"--lambda", "-1"}), 2, "positive");
  expect_failure(dof({"--lambda", "2^x"}), 2, "2^x");
  expect_failure({"dof", fixture, "--ids", ids(), "--samples", "81"}, 1,
                 "only 80 queries and keys");
  expect_failure(dof({"--gram", "median"}), 2, "median");
  expect_failure({"dof", fixture, "--length", "100000"}, 1, "context");
  expect_failure(dof({"--out", "/dev/null/dof.json"}), 1, "/dev/null");

  expect_failure({"plan", (scratch.path() / "absent.json").string()}, 1, "absent.json");
  saved_table();
  expect_failure({"plan", table, "--lambda", "0"}, 2, "positive");
  expect_failure({"plan", table, "--lambda", "2^-30"}, 1, "smallest");
  expect_failure({"plan", table, "--cost", "0"}, 2, "--cost");
  expect_failure({"plan", table, "--power", "2"}, 2, "power has no effect with strategy dof");
  const std::string whole = read_text(table);
  write_whole(table, whole.substr(0, whole.size() / 2));
  expect_failure({"plan", table}, 1, "not valid JSON");
  Json newer = parse_json(whole, "table");
  newer["version"] = 2;
  write_whole(table, newer.dump());
  expect_failure({"plan", table}, 1, "newer dofla");
}

}  // namespace
}  // namespace dofla
