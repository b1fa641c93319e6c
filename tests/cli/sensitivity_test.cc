// dofla sensitivity, and plans from it, as a user meets them.
#include "dofla/plan/dimension_plan.h"
#include "tests/support/distill_command.h"

namespace dofla {
namespace {

using testing::HasSubstr;

class SensitivityCli : public test::DistillCommand {
 protected:
  std::vector<std::string> sensitivity(const std::vector<std::string>& more = {}) {
    return joined({"sensitivity", model, "--ids", ids(), "--held-out", "2"}, more);
  }
  std::string saved() {
    EXPECT_EQ(run(sensitivity({"--cost", "6", "--seed", "3", "--out", file})).exit_code, 0);
    return file;
  }

  const std::string file = (scratch.path() / "sensitivity.json").string();
  const std::string plan = (scratch.path() / "plan.json").string();
};

// In two steps or inside distill, the text and the seed decide.
TEST_F(SensitivityCli, GivesThePlanOfDistill) {
  for (const std::string by : {"layer", "head"}) {
    const std::string student = out + by;
    const Json distilled =
        json(bare({"--strategy", "sensitivity", "--by", by, "--cost", "6", "--least", "2", "--seed",
                   "3", "--steps", "1", "--out", student}));
    const Json planned = json({"plan", saved(), "--cost", "6", "--by", by, "--least", "2"});
    EXPECT_EQ(load_json(file), load_json(fs::path(student) / "sensitivity.json"));
    const DimensionPlan used = load_dimension_plan(fs::path(student) / "plan.json");
    Json expected = to_json(used);
    EXPECT_EQ(planned["predicted"], distilled["predicted"]);
    expected["predicted"] = planned["predicted"];
    EXPECT_EQ(planned, expected);
    for (const auto& layer : used.heads)
      for (const int64_t M : layer) EXPECT_GE(M, 2);
    EXPECT_EQ(used.mean(), 6);
    EXPECT_EQ(distilled["added"].size(), distilled["dims"].size());
    const Json about = load_json(fs::path(student) / "config.json")["linear_attention"];
    EXPECT_EQ(about["by"], by);
    EXPECT_EQ(about["least"], 2);
    EXPECT_FALSE(about.contains("lambda"));
  }
}

TEST_F(SensitivityCli, OneFileServesAnyBudget) {
  saved();
  for (const char* cost : {"1", "6", "50"}) {
    EXPECT_EQ(run({"plan", file, "--cost", cost, "--out", plan}).exit_code, 0);
    EXPECT_EQ(load_dimension_plan(plan).mean(), std::stoi(cost));
    fs::remove(plan);
  }
  EXPECT_THAT(run({"plan", file, "--cost", "6"}).out, HasSubstr("strategy sensitivity by head"));
}

TEST_F(SensitivityCli, DrawsAPage) {
  saved();
  EXPECT_EQ(run({"plan", file, "--cost", "6", "--out", plan}).exit_code, 0);
  const std::string page = (scratch.path() / "page.html").string();
  EXPECT_EQ(run({"report", file, plan, "--out", page}).exit_code, 0);
  const std::string html = read_text(page);
  EXPECT_THAT(html, HasSubstr("<h2>Sensitivity</h2>"));
  EXPECT_THAT(html, HasSubstr("Predicted above the teacher"));
  EXPECT_THAT(html, HasSubstr("<h2>Dimension plan</h2>"));
}

TEST_F(SensitivityCli, RefusesInOneLine) {
  saved();
  expect_failure({"plan", file, "--cost", "6", "--least", "7"}, 1, "cannot give every head 7");
  expect_failure({"plan", file, "--strategy", "dof"}, 2, "needs a file of dofla dof");
  expect_failure({"plan", file, "--lambda", "2^-4"}, 2, "a sensitivity has none");
  expect_failure({"plan", file, "--bound"}, 2, "a sensitivity has none");
  expect_failure({"plan", file, "--power", "2"}, 2, "power has no effect");
  expect_failure({"plan", write("cut.json", read_text(file).substr(0, 100))}, 1, "cut.json");
  expect_failure(sensitivity({"--windows", "7"}), 1, "7 windows, but the training text has 6");
  expect_failure({"sensitivity", model, "--ids", ids(), "--held-out", "8"}, 1, "8 are held out");
  expect_failure(sensitivity({"--ladder", "4"}), 2, "at least two");
  expect_failure(sensitivity({"--ladder", "8,4"}), 2, "that grow");
  expect_failure(sensitivity({"--ladder", "4,8", "--cost", "4"}), 2, "excludes");
  expect_failure(bare({"--strategy", "fix", "--by", "head", "--out", out}), 2, "by has no effect");
  expect_failure(bare({"--strategy", "sensitivity", "--lambda", "2^-4", "--out", out}), 2,
                 "have no effect");
  expect_failure(bare({"--strategy", "sensitivity", "--features", "performer", "--out", out}), 2,
                 "no plan for performer");
  expect_failure(bare({"--strategy", "fix", "--cost", "4", "--least", "5", "--out", out}), 1,
                 "cannot give every head 5");
}

// A plan says which model it is for.
TEST_F(SensitivityCli, RefusesTheSensitivityOfAnotherModel) {
  Json other = load_json(saved());
  other["model"]["head_size"] = 4096;
  EXPECT_EQ(
      run({"plan", write("other.json", other.dump()), "--cost", "6", "--out", plan}).exit_code, 0);
  expect_failure(bare({"--plan", plan, "--out", out}), 1, "the plan is for gpt2");
  expect_failure({"report", file, plan, "--out", (scratch.path() / "page.html").string()}, 1,
                 "the sensitivity is of gpt2");
}

}  // namespace
}  // namespace dofla
