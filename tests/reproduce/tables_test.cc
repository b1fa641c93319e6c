// Tables made of records that are written by hand: every number in them can be followed.
#include "dofla/reproduce/tables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dofla/reproduce/student_runs.h"
#include "tests/support/fixtures.h"

namespace dofla {
namespace {

using testing::HasSubstr;
using testing::Not;

class ReproducedTables : public testing::Test {
 protected:
  ReproducedTables() {
    std::string text;
    for (int i = 0; i < 40; ++i) text += fmt::format("Lily saw {} red birds in the park. ", i);
    write_whole(scratch.path() / "text.txt", text);
    write_whole(scratch.path() / "suite.json", R"({
      "data": ["text.txt"], "length": 32, "held_out": 2, "costs": [4],
      "strategies": ["fix", "dof"], "losses": ["direct", "softmax"],
      "baselines": ["performer", "dijiang"], "seeds": [1, 2], "steps": 10, "batch": 3,
      "equal_time": {"loss": "softmax", "as": "direct"},
      "dof": {"lambda": 0.0625, "samples": 33},
      "tasks": {"names": ["wsc", "winogrande"], "data": "tasks"}, "timing": [8, 32]})");
    Suite suite = read_suite(scratch.path() / "suite.json");
    suite.teacher = fs::path(DOFLA_SOURCE_DIR) / "tests/models/stories260K";
    study.emplace(open_study(suite, scratch.path() / "out", Device()));
    folder.emplace(scratch.path() / "out/runs");

    // Performer 6.2 and the teacher 4.2: 0.2 of loss are a tenth of the gap.
    students("performer", {6.0, 6.4}, 0, {0, 0});
    students("dijiang", {5.0, 5.0}, 10, {0.1, 0.1});
    students("fix-direct", {6.6, 6.6}, 10, {0.3, 0.5});
    students("fix-softmax", {5.8, 5.2}, 10, {0.1, 0.1});
    students("dof-direct", {4.4, 4.6}, 10, {0.3, 0.5});
    students("dof-softmax", {5.0, 5.4}, 10, {0.1, 0.1});
    record("c4-dof-softmax-s1-equal-time", student(4.7, 30, 0.1));
    record("c4-dof-softmax-s2-equal-time", student(4.9, 50, 0.1));
  }

  void record(const std::string& name, const Json& result) {
    folder->save({.name = name, .settings = 1, .result = result, .error = {}, .seconds = 1});
  }
  static Json student(double loss, int64_t steps, double step_seconds) {
    return {{"teacher_loss", 4.2},
            {"student_loss", loss},
            {"features", 4},
            {"steps", steps},
            {"step_seconds", step_seconds}};
  }
  void students(const std::string& name, const std::array<double, 2>& losses, int64_t steps,
                const std::array<double, 2>& step_seconds) {
    for (size_t i = 0; i < 2; ++i)
      record(fmt::format("c4-{}-s{}", name, i + 1), student(losses[i], steps, step_seconds[i]));
  }

  // The table of this title as tables.md has it.
  std::string table(const std::string& title) const {
    for (const ResultTable& one : make_tables(*study, *folder, {}).tables)
      if (one.title == title) return to_markdown(one);
    ADD_FAILURE() << "no table " << title;
    return {};
  }

  const test::ScratchFolder scratch;
  std::optional<Study> study;
  std::optional<RunFolder> folder;
};

TEST_F(ReproducedTables, LossesAreMeansOverSeedsAndSharesOfTheGap) {
  const std::string losses = table("Next-token loss at cost 4");
  EXPECT_THAT(losses, HasSubstr("| strategy | stories260K: direct | stories260K: softmax | paper, "
                                "GPT-2: direct | paper, GPT-2: softmax | paper, GPT-2: l2 |\n"));
  EXPECT_THAT(losses, HasSubstr("| Fix | 6.600 (−20 %) | 5.500 ± 0.424 (35 %) | 3.9657 (87 %) | "
                                "5.4082 (57 %) | 6.2453 (40 %) |\n"));
  EXPECT_THAT(losses, HasSubstr("| DoF | 4.500 ± 0.141 (85 %) | 5.200 ± 0.283 (50 %) | "
                                "5.2651 (60 %) | 4.0170 (86 %) | 6.6802 (31 %) |\n"));
  EXPECT_THAT(losses, HasSubstr("2 held-out windows of 32 tokens, after 10 steps of 3 windows: the "
                                "mean over seeds 1 and 2"));
  const std::string baselines = table("Baselines at cost 4");
  EXPECT_THAT(baselines, HasSubstr("| Performer | 6.200 ± 0.283 (0 %) | 8.1586 (0 %) |\n"));
  EXPECT_THAT(baselines, HasSubstr("| DiJiang | 5.000 (60 %) | 5.5965 (53 %) |\n"));
  EXPECT_THAT(baselines, HasSubstr("| Teacher | 4.200 | 3.3558 |\n"));
}

TEST_F(ReproducedTables, StrategiesArePairedWithFixBySeed) {
  const std::string paired = table("Loss less that of Fix with the same seed, at cost 4");
  EXPECT_THAT(paired, HasSubstr("| strategy | stories260K: direct | stories260K: softmax | paper, "
                                "GPT-2: direct | paper, GPT-2: softmax | paper, GPT-2: l2 |\n"));
  EXPECT_THAT(paired, HasSubstr("| DoF | −2.100 ± 0.141 (ahead in 2 of 2) | "
                                "−0.300 ± 0.707 (ahead in 1 of 2) | +1.299 | −1.391 | "
                                "+0.435 |\n"));
  EXPECT_THAT(paired, Not(HasSubstr("| Fix |")));
  record("c4-fix-softmax-s2", Json{});  // a seed without its pair does not count
  EXPECT_THAT(table("Loss less that of Fix with the same seed, at cost 4"),
              HasSubstr("| −2.100 ± 0.141 (ahead in 2 of 2) | −0.800 (ahead in 1 of 1) | +1.299"));
}

TEST_F(ReproducedTables, EqualTimeHasStepsTimesTheirSeconds) {
  const std::string text = table("Equal time at cost 4: softmax against direct");
  EXPECT_THAT(text, HasSubstr("| Fix | direct | | 10 | 4.0 ± 1.4 | 6.600 (−20 %) | "
                              "3.9657 (87 %) |\n"));
  EXPECT_THAT(text, HasSubstr("| DoF | softmax | equal steps | 10 | 1.0 | "
                              "5.200 ± 0.283 (50 %) | 4.0170 (86 %) |\n"));
  EXPECT_THAT(text, HasSubstr("| DoF | softmax | equal time | 40 ± 14 | 4.0 ± 1.4 | "
                              "4.800 ± 0.141 (70 %) | – |\n"));
  EXPECT_THAT(text, HasSubstr("| Fix | softmax | equal time | – | – | – | – |\n"));
}

// A step of direct took three times as long as one of softmax, for the second seed five times.
TEST_F(ReproducedTables, EqualTimeGivesAsManyStepsAsTheOtherLossTook) {
  const auto steps = [&](uint64_t seed) -> int64_t {
    const Student student = {
        .cost = 4, .loss = LossKind::kSoftmax, .seed = seed, .equal_time = true};
    return student_run(*study, *folder, student).settings()["steps"];
  };
  EXPECT_EQ(steps(1), 30);
  EXPECT_EQ(steps(2), 50);
}

TEST_F(ReproducedTables, DimensionsAndDegreesOfFreedom) {
  for (int seed : {1, 2}) {
    Json heads = Json::array(), plans = Json::array();
    for (int layer = 0; layer < 5; ++layer) {
      heads.push_back(Json::array());
      plans.push_back(Json::array());
      for (int head = 0; head < 8; ++head) {
        heads.back().push_back(head == layer ? 30 + seed : 10 * seed + head);
        plans.back().push_back(layer == 0 ? 2 * seed + 1 : 7);
      }
    }
    record(fmt::format("dof-s{}", seed), {{"heads", heads}, {"plans", {{"c4-dof", plans}}}});
  }
  const std::string dims = table("Dimensions at cost 4");
  EXPECT_THAT(dims, HasSubstr("| layer | stories260K: Fix | stories260K: DoF | paper, GPT-2: DoF, "
                              "C = 64 |\n"));
  EXPECT_THAT(dims, HasSubstr("| 1 | 4 | 4 ± 1 | 130 |\n"));
  EXPECT_THAT(dims, HasSubstr("| 2 | 4 | 7 | 182 |\n"));
  EXPECT_THAT(dims, HasSubstr("| 6 | | | 65 |\n"));
  EXPECT_THAT(dims, HasSubstr("λ = 2⁻⁴ from 33 samples a head"));
  const std::string heads = table("Degrees of freedom of every head");
  EXPECT_THAT(heads, HasSubstr("| 1 | **31.5** | 16.0 | 17.0 | 18.0 | 19.0 | 20.0 | 21.0 | 22.0"));
  EXPECT_THAT(heads, HasSubstr("| 2 | 15.0 | **31.5** | 17.0 | 18.0 | 19.0 | 20.0 | 21.0 | 22.0"));
}

TEST_F(ReproducedTables, AccuraciesStandInTheTableOfTheirTitle) {
  const auto answers = [](double zero_shot, double finetuned, const Json& error) {
    return Json{{"chance", 0.5},
                {"zero_shot", {{"acc", zero_shot}, {"acc_stderr", error}}},
                {"finetuned", {{"acc", finetuned}, {"acc_stderr", error}}}};
  };
  record("task-wsc-teacher", answers(0.25, 0.75, 0.04));
  record("task-winogrande-teacher", answers(0.35, 0.85, 0.03));
  record("task-wsc-c4-dof-softmax-s1", answers(0.125, 0.625, Json()));
  record("task-winogrande-c4-dof-softmax-s1", answers(0.375, 0.875, 0.02));
  record("task-wsc-c4-performer-s1", answers(0.2, 0.3, 0.01));

  const std::string before = table("Accuracy at cost 4, zero-shot");
  EXPECT_THAT(before, HasSubstr("| | guessing | 0.5000 | 0.5000 | 0.5000 |\n"));
  EXPECT_THAT(before, HasSubstr("| | teacher | 0.2500 ± 0.0400 | 0.3500 ± 0.0300 | 0.3000 |\n"));
  EXPECT_THAT(before, HasSubstr("| DoF | softmax | 0.1250 | 0.3750 ± 0.0200 | 0.2500 |\n"));
  EXPECT_THAT(before, HasSubstr("| | Performer | 0.2000 ± 0.0100 | – | – |\n"));
  EXPECT_THAT(before, Not(HasSubstr("paper, GPT-2:")));

  const std::string after = table("Accuracy at cost 4, fine-tuned");
  EXPECT_THAT(after, HasSubstr("| | teacher | 0.7500 ± 0.0400 | 0.8500 ± 0.0300 | 0.8000 | "
                               "0.6538 | 0.5122 | 0.5830 |\n"));
  EXPECT_THAT(after, HasSubstr("| DoF | softmax | 0.6250 | 0.8750 ± 0.0200 | 0.7500 | "
                               "0.6442 | 0.5328 | 0.5885 |\n"));
  EXPECT_THAT(after, HasSubstr("| | Performer | 0.3000 ± 0.0100 | – | – | "
                               "0.5962 | 0.4996 | 0.5479 |\n"));
}

TEST_F(ReproducedTables, TimesAndTheirRatios) {
  // The teacher, Fix, DoF; 8 and 32 tokens each.
  record("c4-inference", {{"prefill_ms", {0.1, 0.2, 0.3, 0.4, 0.5, 0.6}},
                          {"decode_ms", {2.0, 4.0, 1.0, 2.0, 1.5, 3.0}}});
  record("c4-training-time", {{"teacher_forward_ms", 2}, {"losses_ms", {8, 4}}});
  const std::string inference = table("Inference time at cost 4");
  EXPECT_THAT(inference, HasSubstr("| model | stories260K: prefill at 8, ms | stories260K: decode "
                                   "at 8, ms | stories260K: prefill at 32, ms |"));
  EXPECT_THAT(inference, HasSubstr("| teacher | 0.100 | 2.000 | 0.200 | 4.000 | 2.00 | – | – |\n"));
  EXPECT_THAT(inference,
              HasSubstr("| Fix | 0.300 | 1.000 | 0.400 | 2.000 | 1.00 | 15.589 | 1.00 |\n"));
  EXPECT_THAT(inference,
              HasSubstr("| DoF | 0.500 | 1.500 | 0.600 | 3.000 | 1.50 | 15.579 | 1.00 |\n"));
  const std::string training = table("Training time a sample at cost 4");
  EXPECT_THAT(training, HasSubstr("| teacher's forward | 2.0 | 1.00 | 0.25 | – | – |\n"));
  EXPECT_THAT(training, HasSubstr("| direct | 8.0 | 4.00 | 1.00 | 109.4 | 1.00 |\n"));
  EXPECT_THAT(training, HasSubstr("| softmax | 4.0 | 2.00 | 0.50 | 90.4 | 0.83 |\n"));
}

TEST_F(ReproducedTables, TheSettingsAreThoseOfTheSuite) {
  const std::string page = to_markdown(make_tables(*study, *folder, {}));
  const size_t windows = study->text.train.size();
  EXPECT_THAT(page, HasSubstr(fmt::format("| text | text.txt; {} windows of 32 tokens to train on, "
                                          "2 held out |\n",
                                          windows)));
  EXPECT_THAT(page, HasSubstr("| costs | 4 |\n| seeds | 1, 2 |\n"
                              "| features | prf, balanced coordinates |\n"));
  EXPECT_THAT(page, HasSubstr("| training | 10 steps of 3 windows, features started by pairs, "
                              "causal pairs |\n"));
  EXPECT_THAT(page, HasSubstr("| degrees of freedom | λ = 2⁻⁴, 33 samples, "));
}

}  // namespace
}  // namespace dofla
