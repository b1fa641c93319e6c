// The options of dofla distill: what contradicts itself is refused, what is recorded was used.
#include "dofla/linear/linear_model.h"
#include "tests/support/distill_command.h"

namespace dofla {
namespace {

using test::ProcessResult;
using testing::HasSubstr;
using DistillOptionsCli = test::DistillCommand;

// What was asked for is used, or refused before anything is read.
TEST_F(DistillOptionsCli, RefusesWhatHasNoEffect) {
  const auto refuses = [&](const std::vector<std::string>& more, const std::string& part) {
    expect_failure(bare(joined({"--out", out}, more)), 2, part);
  };
  const std::string plan = scratch.path() / "plan.json", start = scratch.path() / "start";
  for (const char* given : {"--plan", "--start"})
    for (const std::vector<std::string>& other :
         std::vector<std::vector<std::string>>{{"--cost", "32"},
                                               {"--strategy", "fix"},
                                               {"--power", "1"},
                                               {"--least", "2"},
                                               {"--by", "head"}})
      refuses(joined({given, plan}, other), "excludes");
  refuses({"--start", start, "--features", "prf"}, "--start");
  refuses({"--start", start, "--init", "iid"}, "--start");
  refuses({"--start", start, "--plan", plan}, "--plan");

  refuses({"--features", "dijiang", "--loss", "softmax"}, "loss softmax has no effect");
  refuses({"--features", "dijiang", "--mask", "full"}, "mask has no effect");
  refuses({"--features", "dijiang", "--lr-z", "0.1"}, "learning rate of z has no effect");
  refuses({"--features", "dijiang", "--init", "iid"}, "init has no effect");
  refuses({"--features", "performer", "--steps", "2"}, "steps 2 has no effect");
  refuses({"--features", "performer", "--loss", "l2"}, "loss has no effect");
  refuses({"--features", "performer", "--init", "iid"}, "init has no effect");
  refuses({"--features", "performer", "--lr-alpha", "1"}, "a learning rate has no effect");
  refuses({"--loss", "direct", "--mask", "full"}, "mask has no effect");
  refuses({"--loss", "output", "--mask", "full"}, "mask has no effect");
  refuses({"--keys", "24", "--mask", "causal"}, "mask has no effect");
  refuses({"--loss", "l2", "--recompute"}, "recompute has no effect");
  refuses({"--recompute"}, "recompute has no effect");
  refuses({"--power", "2"}, "power has no effect");
  refuses({"--strategy", "fix", "--lambda", "2^-4"}, "have no effect");
  refuses({"--strategy", "fix", "--samples", "16"}, "have no effect");
  EXPECT_FALSE(fs::exists(out));
}

// config.json tells what was used and nothing else.
TEST_F(DistillOptionsCli, RecordsWhatWasUsed) {
  int64_t number = 0;
  const auto record = [&](const std::vector<std::string>& more) {
    const std::string folder = out + std::to_string(number++);
    json(bare(joined({"--out", folder}, more)));
    return load_json(fs::path(folder) / "config.json")["linear_attention"];
  };
  const Json fixed = record({"--strategy", "fix", "--steps", "1"});
  EXPECT_EQ(fixed["loss"], "softmax");
  EXPECT_EQ(fixed["mask"], "causal");
  EXPECT_EQ(fixed["init"], "pairs");
  EXPECT_EQ(fixed["cost"], load_json(fs::path(model) / "config.json")["n_embd"].get<int64_t>() /
                               load_json(fs::path(model) / "config.json")["n_head"].get<int64_t>());
  for (const char* unused : {"lambda", "samples", "draws", "power"})
    EXPECT_FALSE(fixed.contains(unused)) << unused;

  const Json measured = record({"--samples", "24", "--cost", "4", "--steps", "1"});
  EXPECT_EQ(measured["samples"], 24);
  EXPECT_EQ(measured["draws"], 8);
  EXPECT_EQ(measured["lambda"], 0x1p-4);

  const Json direct = record({"--strategy", "fix", "--loss", "direct", "--steps", "1"});
  EXPECT_EQ(direct["loss"], "direct");
  EXPECT_FALSE(direct.contains("mask"));

  const Json drawn = record({"--strategy", "fix", "--features", "performer"});
  EXPECT_EQ(drawn["loss"], "none");
  EXPECT_EQ(drawn["steps"], 0);
  for (const char* unused : {"init", "mask", "lr_z", "lr_alpha"})
    EXPECT_FALSE(drawn.contains(unused)) << unused;
}

// The same question has one answer, however it is asked.
TEST_F(DistillOptionsCli, HasThePlanOfDofAndPlan) {
  const std::string table = scratch.path() / "dof.json";
  // distill holds two of the eight windows out and measures on the others.
  json({"dof", model, "--ids", ids(), "--sequences", "6", "--samples", "32", "--seed", "5", "--out",
        table});
  for (const std::string strategy : {"dof", "dof-clip", "dof-head"}) {
    const Json plan = json({"plan", table, "--strategy", strategy});
    const std::string folder = out + strategy;
    json(bare({"--strategy", strategy, "--samples", "32", "--seed", "5", "--steps", "0", "--out",
               folder}));
    EXPECT_EQ(load_json(fs::path(folder) / "plan.json"), plan) << strategy;
    EXPECT_EQ(load_json(fs::path(folder) / "dof.json"), load_json(table)) << strategy;
  }
}

TEST_F(DistillOptionsCli, NamesTheFilesThatItWrote) {
  const ProcessResult fixed = run(distill({"--out", out, "--steps", "0"}));
  ASSERT_EQ(fixed.exit_code, 0) << fixed.err;
  EXPECT_THAT(fixed.err, HasSubstr("model, plan.json and report.html"));
  EXPECT_FALSE(fs::exists(fs::path(out) / "dof.json"));
  const std::string other = out + "2";
  const ProcessResult measured = run(bare({"--samples", "24", "--steps", "0", "--out", other}));
  ASSERT_EQ(measured.exit_code, 0) << measured.err;
  EXPECT_THAT(measured.err, HasSubstr("model, dof.json, plan.json and report.html"));
  EXPECT_TRUE(fs::exists(fs::path(other) / "dof.json"));
}

}  // namespace
}  // namespace dofla
