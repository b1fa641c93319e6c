#include "dofla/reproduce/suite.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/fixtures.h"

namespace dofla {
namespace {

using testing::ElementsAre;

class SuiteTest : public testing::Test {
 protected:
  Suite read(const std::string& text) {
    write_whole(file, text);
    return read_suite(file);
  }
  void expect_refused(const std::string& text, std::initializer_list<std::string_view> parts) {
    test::expect_error([&] { read(text); }, {"suite.json: "});
    test::expect_error([&] { read(text); }, parts);
  }

  const test::ScratchFolder scratch;
  const fs::path file = scratch.path() / "suite.json";
};

TEST_F(SuiteTest, ReadsEveryField) {
  const Suite suite = read(R"({
    "teacher": "models/a", "data": ["a.txt", "/b.txt"], "length": 32, "held_out": 4,
    "costs": [8, 16], "strategies": ["fix", "dof-head"], "losses": ["direct", "l2"],
    "baselines": ["performer", "dijiang"], "seeds": [3, 0], "steps": 7, "batch": 2,
    "init": "iid", "mask": "full",
    "learning_rates": {"l2": {"z": 0.5}, "dijiang": {"alpha": 0.25}},
    "equal_time": {"loss": "l2", "as": "direct"},
    "dof": {"lambda": 0.0625, "samples": 9, "draws": 2, "sequences": 3, "gram": "max", "power": 2},
    "tasks": {"names": ["wsc", "piqa"], "data": "tasks", "finetune": false, "limit": 5,
              "train_limit": 6, "epochs": 1, "batch": 3, "learning_rate": 0.125},
    "timing": [16, 32]})");
  EXPECT_EQ(suite.teacher, scratch.path() / "models/a");
  EXPECT_THAT(suite.data, ElementsAre(scratch.path() / "a.txt", fs::path("/b.txt")));
  EXPECT_EQ(suite.length, 32);
  EXPECT_EQ(suite.held_out, 4);
  EXPECT_THAT(suite.costs, ElementsAre(8, 16));
  EXPECT_THAT(suite.strategies, ElementsAre(PlanStrategy::kFix, PlanStrategy::kDofHead));
  EXPECT_THAT(suite.losses, ElementsAre(LossKind::kDirect, LossKind::kL2));
  EXPECT_THAT(suite.baselines, ElementsAre(FeatureMap::kPerformer, FeatureMap::kDijiang));
  EXPECT_THAT(suite.seeds, ElementsAre(3, 0));
  EXPECT_EQ(suite.steps, 7);
  EXPECT_EQ(suite.batch, 2);
  EXPECT_EQ(suite.init, FeatureInit::kIid);
  EXPECT_EQ(suite.mask, PairMask::kFull);
  EXPECT_EQ(suite.learning_rates.at("l2").z, 0.5);
  EXPECT_EQ(suite.learning_rates.at("l2").alpha, std::nullopt);
  EXPECT_EQ(suite.learning_rates.at("dijiang").alpha, 0.25);
  ASSERT_TRUE(suite.equal_time);
  EXPECT_EQ(suite.equal_time->loss, LossKind::kL2);
  EXPECT_EQ(suite.equal_time->as, LossKind::kDirect);
  EXPECT_EQ(suite.dof.lambda, 0.0625);
  EXPECT_EQ(suite.dof.samples, 9);
  EXPECT_EQ(suite.dof.draws, 2);
  EXPECT_EQ(suite.dof_sequences, 3);
  EXPECT_EQ(suite.dof.gram, GramScale::kMax);
  EXPECT_EQ(suite.power, 2);
  ASSERT_TRUE(suite.tasks);
  EXPECT_THAT(suite.tasks->names, ElementsAre("wsc", "piqa"));
  EXPECT_EQ(suite.tasks->data, scratch.path() / "tasks");
  EXPECT_FALSE(suite.tasks->finetune);
  EXPECT_EQ(suite.tasks->limit, 5);
  EXPECT_EQ(suite.tasks->train_limit, 6);
  EXPECT_EQ(suite.tasks->epochs, 1);
  EXPECT_EQ(suite.tasks->batch, 3);
  EXPECT_THAT(suite.tasks->learning_rates, ElementsAre(0.125));
  EXPECT_THAT(suite.timing, ElementsAre(16, 32));
}

TEST_F(SuiteTest, WhatIsLeftOutHasItsDefault) {
  const Suite suite = read("{}");
  EXPECT_TRUE(suite.teacher.empty());
  EXPECT_TRUE(suite.data.empty());
  EXPECT_THAT(suite.costs, ElementsAre(64));
  EXPECT_THAT(suite.seeds, ElementsAre(1));
  EXPECT_FALSE(suite.tasks);
  EXPECT_TRUE(suite.timing.empty());
}

// A default that a suite shares with `distill` is the same one.
TEST_F(SuiteTest, DefaultsAreThoseOfDistill) {
  const Suite suite = read("{}");
  const DistillOptions distill;
  EXPECT_EQ(suite.steps, distill.recipe.train.steps);
  EXPECT_EQ(suite.batch, distill.batch);
  EXPECT_EQ(suite.init, distill.recipe.init);
  EXPECT_EQ(suite.mask, std::get<FeatureLossOptions>(distill.recipe.loss).mask);
  EXPECT_EQ(suite.held_out, kHeldOut);
  EXPECT_EQ(suite.dof_sequences, distill.sequences);
  EXPECT_EQ(suite.dof.lambda, DofOptions().lambda);
  EXPECT_EQ(suite.dof.draws, 8);
}

TEST_F(SuiteTest, EveryDefectIsNamedByFileAndField) {
  expect_refused("[1]", {"JSON object"});
  expect_refused(R"({"colour": 1})", {"colour", "no such field", "strategies"});
  expect_refused(R"({"teacher": 3})", {"teacher", "a path", "3"});
  expect_refused(R"({"data": "a.txt"})", {"data", "a list"});
  expect_refused(R"({"data": [""]})", {"data", "a path"});
  expect_refused(R"({"length": 1})", {"length", "from 2", "1"});
  expect_refused(R"({"held_out": 0})", {"held_out", "0"});
  expect_refused(R"({"steps": -1})", {"steps", "-1"});
  expect_refused(R"({"steps": 2.5})", {"steps", "whole number", "2.5"});
  expect_refused(R"({"batch": "8"})", {"batch", "whole number", "\"8\""});
  expect_refused(R"({"costs": []})", {"costs", "at least one"});
  expect_refused(R"({"costs": [64, 0]})", {"costs", "0"});
  expect_refused(R"({"seeds": [1, 1]})", {"seeds", "1 stands there twice"});
  expect_refused(R"({"seeds": [-1]})", {"seeds", "-1"});
  expect_refused(R"({"strategies": ["fix", "dofs"]})", {"strategies", "dof-clip", "\"dofs\""});
  expect_refused(R"({"strategies": "fix"})", {"strategies", "a list"});
  expect_refused(R"({"losses": ["cosine"]})", {"losses", "attention-mse", "\"cosine\""});
  expect_refused(R"({"losses": [4]})", {"losses", "4"});
  expect_refused(R"({"baselines": ["prf"]})", {"baselines", "performer or dijiang", "\"prf\""});
  expect_refused(R"({"init": "zero"})", {"init", "leverage", "\"zero\""});
  expect_refused(R"({"mask": true})", {"mask", "causal or full", "true"});
  expect_refused(R"({"timing": [1]})", {"timing", "from 2"});
  expect_refused(R"({"timing": true})", {"timing", "a list"});
}

TEST_F(SuiteTest, DefectsOfInnerObjectsAreNamedByTheirPlace) {
  expect_refused(R"({"dof": 1})", {"dof", "JSON object"});
  expect_refused(R"({"dof": {"lambda": 0}})", {"dof: lambda", "positive", "0"});
  expect_refused(R"({"dof": {"gram": "sum"}})", {"dof: gram", "\"sum\""});
  expect_refused(R"({"dof": {"power": -1}})", {"dof: power", "-1"});
  expect_refused(R"({"dof": {"lamda": 1}})", {"dof: lamda", "no such field", "lambda"});
  expect_refused(R"({"learning_rates": {"prf": {}}})", {"learning_rates: prf", "no such field"});
  expect_refused(R"({"learning_rates": {"l2": {"z": -1}}})", {"learning_rates: l2: z", "-1"});
  expect_refused(R"({"learning_rates": {"l2": 1}})", {"learning_rates: l2", "JSON object"});
  expect_refused(R"({"losses": ["l2"], "equal_time": {"loss": "l2"}})",
                 {"equal_time: as", "missing"});
  expect_refused(R"({"losses": ["l2"], "equal_time": {"loss": "l2", "as": "direct"}})",
                 {"equal_time: as", "direct is not one of the suite's losses"});
  expect_refused(R"({"losses": ["l2"], "equal_time": {"loss": "l2", "as": "l2"}})",
                 {"equal_time: as", "the same loss"});
  expect_refused(
      R"({"losses": ["l2", "direct"], "steps": 0, "equal_time": {"loss": "l2", "as": "direct"}})",
      {"equal_time", "0 steps"});
  expect_refused(R"({"tasks": {}})", {"tasks: names", "at least one"});
  expect_refused(R"({"tasks": {"names": ["chess"]}})", {"tasks: names", "winogrande", "\"chess\""});
  expect_refused(R"({"tasks": {"names": ["wsc"], "limit": 0}})", {"tasks: limit", "0"});
  expect_refused(R"({"tasks": {"names": ["wsc"], "finetune": 1}})", {"tasks: finetune", "true or"});
  expect_refused(R"({"tasks": {"names": ["wsc"], "learning_rate": -1}})",
                 {"tasks: learning_rate", "-1"});
  expect_refused(R"({"tasks": {"names": ["wsc"], "learning_rate": [1e-4, "x"]}})",
                 {"tasks: learning_rate", "\"x\""});
  expect_refused(R"({"tasks": {"names": ["wsc"], "learning_rate": [1e-4, 1e-4]}})",
                 {"tasks: learning_rate", "stands there twice"});
}

TEST(SuiteExamples, AllOfThemAreSound) {
  int64_t found = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(DOFLA_SOURCE_DIR) / "examples"))
    if (entry.path().extension() == ".json") {
      EXPECT_NO_THROW(read_suite(entry.path())) << entry.path();
      ++found;
    }
  EXPECT_GE(found, 2);
}

TEST_F(SuiteTest, ReadsExactKeys) {
  EXPECT_TRUE(read("{}").exact.empty());
  EXPECT_EQ(read(R"({"exact_keys": {"keys": 64}})").exact, ExactKeys{.keys = 64});
  const ExactKeys window = {
      .keys = 30, .sinks = 0, .recent = 5, .block = 4, .policy = KeyPolicy::kRecent};
  EXPECT_EQ(read(R"({"exact_keys": {"keys": 30, "sinks": 0, "recent": 5, "block": 4,
                                    "policy": "recent"}})")
                .exact,
            window);
  expect_refused(R"({"exact_keys": {}})", {"exact_keys: keys", "missing"});
  expect_refused(R"({"exact_keys": {"keys": 12}})", {"exact_keys", "too few"});
  expect_refused(R"({"exact_keys": {"keys": 64, "policy": "all"}})", {"policy", "attended"});
  expect_refused(R"({"exact_keys": {"keys": 64, "block": 24}})", {"exact_keys", "divides 64"});
  expect_refused(R"({"exact_keys": {"keys": 64, "window": 3}})", {"window"});
}

}  // namespace
}  // namespace dofla
