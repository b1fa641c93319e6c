// dofla sensitivity, and plans from it, as a user meets them.
#include <algorithm>

#include "dofla/plan/dimension_plan.h"
#include "dofla/sensitivity/allocate.h"
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

// A memory is spent on exact keys and features, in two steps or inside distill.
TEST_F(SensitivityCli, GivesThePlanOfDistillInBytes) {
  const std::vector<std::string> memory = {"--memory", "9kB",    "--sinks", "1",
                                           "--recent", "2",      "--block", "2",
                                           "--policy", "recent", "--seed",  "3"};
  const Json distilled = json(bare(joined(memory, {"--steps", "1", "--out", out})));
  ASSERT_EQ(run(sensitivity(joined(memory, {"--out", file}))).exit_code, 0);
  EXPECT_EQ(load_json(file), load_json(fs::path(out) / "sensitivity.json"));
  const Json planned = json({"plan", file, "--memory", "9kB", "--out", plan});
  const DimensionPlan used = load_dimension_plan(fs::path(out) / "plan.json");
  EXPECT_EQ(to_json(used), to_json(load_dimension_plan(plan)));
  EXPECT_EQ(planned["predicted"], distilled["predicted"]);
  EXPECT_LE(used.state_bytes(), 9000);
  EXPECT_GT(used.state_bytes(), 8000);
  EXPECT_EQ(distilled["state_bytes"], used.state_bytes());
  for (const ExactKeys& exact : used.exact) {
    EXPECT_GE(exact.keys, 5);
    EXPECT_EQ(exact.sinks, 1);
    EXPECT_EQ(exact.policy, KeyPolicy::kRecent);
  }
  const std::string text = run({"plan", file, "--memory", "9kB"}).out;
  EXPECT_THAT(text, HasSubstr("strategy sensitivity, in 9.0 kB"));
  EXPECT_THAT(text, HasSubstr("layer       bytes   operations   loss added, predicted   keys; M"));
  // All heads of a layer alike: a plan of its own, and no better one by its own prediction.
  const Json layers = json({"plan", file, "--memory", "9kB", "--by", "layer"});
  EXPECT_NE(layers["exact_keys"], planned["exact_keys"]);
  for (const Json& layer : layers["exact_keys"]) EXPECT_TRUE(layer["keys"].is_number()) << layer;
  EXPECT_EQ(run(bare(joined(memory, {"--dry-run", "--out", out + "2"}))).exit_code, 0);
}

TEST_F(SensitivityCli, RefusesAMemoryInOneLine) {
  const std::vector<std::string> small = {"--sinks", "1", "--recent", "2", "--block", "2"};
  for (const char* bad : {"3XB", "0", "-1MB", "MB", ""})
    expect_failure(bare({"--memory", bad, "--out", out}), 2, "--memory");
  expect_failure(bare(joined(small, {"--memory", "100", "--out", out})), 1,
                 "a memory of 100 bytes a sequence is too little");
  expect_failure(bare({"--memory", "1MB", "--sinks", "20", "--out", out}), 1,
                 "windows of 24 tokens leave nothing to features beside the fewest exact keys, 56");
  for (const std::vector<std::string>& other :
       std::vector<std::vector<std::string>>{{"--cost", "4"},
                                             {"--keys", "20"},
                                             {"--window", "20"},
                                             {"--plan", plan},
                                             {"--start", out}})
    expect_failure(bare(joined({"--memory", "1MB", "--out", out}, other)), 2, "excludes");
  expect_failure(bare({"--memory", "1MB", "--strategy", "dof", "--out", out}), 2,
                 "a memory has no effect");
  expect_failure(bare({"--memory", "1MB", "--block", "3", "--out", out}), 2, "divides 64");
  saved();
  expect_failure({"plan", file, "--memory", "1MB"}, 1,
                 "says nothing of exact keys, and cannot plan a memory: measure it for one");
  expect_failure({"plan", file, "--memory", "3XB"}, 2, "expected a size such as 3MB");
  expect_failure({"plan", file, "--memory", "1MB", "--cost", "4"}, 2, "excludes");
  const std::string dof = (scratch.path() / "dof.json").string();
  ASSERT_EQ(run({"dof", model, "--ids", ids(), "--samples", "8", "--out", dof}).exit_code, 0);
  expect_failure({"plan", dof, "--memory", "1MB"}, 2, "a memory has no effect");
}

// So many layers keep their softmax attention; the others have all that is spent.
TEST_F(SensitivityCli, KeepsTheMostSensitiveLayers) {
  saved();
  const SensitivityTable table = load_sensitivity(file);
  const std::vector<double> added =
      predicted_loss(table, fixed_plan(table.model, 6, table.feature_heads));
  const auto largest = std::max_element(added.begin(), added.end()) - added.begin();
  for (const std::string strategy : {"sensitivity", "dof"}) {
    const std::string student = out + strategy;
    std::vector<std::string> command = bare({"--strategy", strategy, "--keep-count", "1", "--cost",
                                             "6", "--seed", "3", "--steps", "1", "--out", student});
    if (strategy == "dof") command = joined(command, {"--samples", "24"});
    ASSERT_EQ(run(command).exit_code, 0);
    const DimensionPlan used = load_dimension_plan(fs::path(student) / "plan.json");
    EXPECT_EQ(std::ranges::count_if(used.heads, [](const auto& row) { return row.empty(); }), 1);
    EXPECT_NEAR(used.mean(), 6, 0.5);
    if (strategy == "sensitivity") {
      EXPECT_TRUE(used.heads[static_cast<size_t>(largest)].empty());
    }
  }
  const std::string many = std::to_string(table.model.layers + 1);
  expect_failure(bare({"--keep-count", many, "--out", out}), 1,
                 many + " layers are to keep their softmax attention, but the model has");
  expect_failure(bare({"--keep-count", std::to_string(table.model.layers), "--out", out}), 1,
                 "keep fewer layers");
  expect_failure(bare({"--keep-count", "0", "--out", out}), 2, "--keep-count");
  expect_failure(bare({"--keep-count", "1", "--strategy", "fix", "--out", out}), 2,
                 "name the layers instead");
  for (const std::vector<std::string>& other :
       std::vector<std::vector<std::string>>{{"--keep", "1"}, {"--plan", plan}, {"--start", out}})
    expect_failure(bare(joined({"--keep-count", "1", "--out", out}, other)), 2, "excludes");
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
  expect_failure({"report", file, "--lambda", "2^-4", "--out", scratch.path() / "page.html"}, 2,
                 "a sensitivity has none");
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
