// A small suite from its beginning to its tables.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dofla/reproduce/dof_runs.h"
#include "dofla/reproduce/matrix.h"
#include "dofla/reproduce/student_runs.h"
#include "dofla/reproduce/tables.h"
#include "dofla/reproduce/task_runs.h"
#include "dofla/reproduce/timing_runs.h"
#include "tests/support/expect_error.h"
#include "tests/support/fixtures.h"
#include "tests/support/task_files.h"

namespace dofla {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class Reproduce : public testing::Test {
 protected:
  Reproduce() {
    std::string text;
    for (int i = 0; i < 60; ++i)
      text += fmt::format("Lily saw {} red birds and {} cats in the park. ", i * i % 17, i % 5);
    write_whole(scratch.path() / "text.txt", text);
    suite.teacher = fs::path(DOFLA_SOURCE_DIR) / "tests/models/stories260K";
    suite.data = {scratch.path() / "text.txt"};
    suite.length = 32;
    suite.held_out = 2;
    suite.costs = {4};
    suite.strategies = {PlanStrategy::kFix, PlanStrategy::kDof};
    suite.losses = {LossKind::kDirect, LossKind::kSoftmax};
    suite.baselines = {FeatureMap::kPerformer, FeatureMap::kDijiang};
    suite.seeds = {1, 2};
    suite.steps = 2;
    suite.batch = 2;
    suite.dof.samples = 32;
    suite.dof_sequences = 4;
  }

  // One student, fine-tuned on WSC with each of the learning rates.
  void ask_wsc(const std::vector<double>& learning_rates) {
    const fs::path data = scratch.path() / "tasks";
    test::write_task_files(data);
    fs::copy_file(data / "wsc/val.jsonl", data / "wsc/train.jsonl");
    suite.strategies = {PlanStrategy::kFix};
    suite.losses = {LossKind::kSoftmax};
    suite.baselines = {};
    suite.tasks = SuiteTasks{
        .names = {"wsc"}, .data = data, .epochs = 1, .batch = 2, .learning_rates = learning_rates};
  }

  // As one call of the command: everything is read again.
  MatrixOutcome run() {
    study.emplace(open_study(suite, scratch.path() / "out", Device()));
    folder.emplace(scratch.path() / "out/runs");
    return run_matrix(make_matrix(*study, *folder), *folder);
  }
  std::string tables(const MatrixOutcome& outcome) const {
    return to_markdown(make_tables(*study, *folder, outcome.failed));
  }

  const test::ScratchFolder scratch;
  Suite suite;
  std::optional<Study> study;
  std::optional<RunFolder> folder;
};

TEST_F(Reproduce, TablesHoldTheNumbersOfTheRuns) {
  suite.equal_time = {LossKind::kDirect, LossKind::kSoftmax};
  suite.timing = {8, 32};
  const MatrixOutcome outcome = run();
  EXPECT_THAT(outcome.failed, IsEmpty());
  // Two seeds of degrees of freedom, two baselines, two strategies with two losses and equal time;
  // two timings.
  EXPECT_EQ(outcome.ran, 2 * (1 + 2 + 2 * 3) + 2);
  const std::string text = tables(outcome);
  EXPECT_THAT(text, HasSubstr("stories260K, llama with 5 layers of 8 heads of size 8"));

  const auto result = [&](uint64_t seed) {
    return read_student_result(
        *folder,
        {.cost = 4, .strategy = PlanStrategy::kDof, .loss = LossKind::kSoftmax, .seed = seed});
  };
  const double mean = (result(1).student_loss + result(2).student_loss) / 2;
  const double spread = std::abs(result(1).student_loss - result(2).student_loss) / std::sqrt(2);
  EXPECT_THAT(text, HasSubstr(fmt::format(" {:.3f} ± {:.3f}", mean, spread)));
  EXPECT_THAT(text,
              HasSubstr(fmt::format("| Teacher | {:.3f} | 3.3558 |", result(1).teacher_loss)));
  EXPECT_THAT(text, HasSubstr(" 4.0170 (86 %) "));  // the paper's DoF with softmax

  const double dof = read_dof(*study, *folder, 1)[0][0] + read_dof(*study, *folder, 2)[0][0];
  EXPECT_THAT(head_table(*study, *folder).rows[0].cells[0].text, fmt::format("{:.1f}", dof / 2));
  const InferenceResult inference = read_inference(*study, *folder, 4);
  EXPECT_EQ(inference_table(*study, *folder, 4).rows[1].cells[1].text,
            fmt::format("{:.3f}", inference[1][0].decode));
  // Beside the longest of two lengths, that of Fix.
  EXPECT_EQ(inference_table(*study, *folder, 4).rows[0].cells[4].text,
            fmt::format("{:.2f}", inference[0][1].decode / inference[1][1].decode));
  const TrainingTime training = read_training_time(*study, *folder, 4);
  EXPECT_EQ(training_time_table(*study, *folder, 4).rows[2].cells[1].text,
            fmt::format("{:.2f}", training.losses[1] / training.teacher_forward));

  const MatrixOutcome again = run();
  EXPECT_EQ(again.ran, 0);
  EXPECT_EQ(tables(again), text);
}

TEST_F(Reproduce, AnInterruptedMatrixGoesOn) {
  suite.strategies = {PlanStrategy::kFix};
  suite.seeds = {1};
  run();
  const fs::path runs = scratch.path() / "out/runs";
  const std::string before = read_text(runs / "c4-fix-softmax-s1.json");
  fs::remove(runs / "c4-fix-direct-s1.json");
  suite.losses.push_back(LossKind::kL2);
  const MatrixOutcome outcome = run();
  EXPECT_EQ(outcome.ran, 2);  // what was lost, and what is new
  EXPECT_EQ(read_text(runs / "c4-fix-softmax-s1.json"), before);
  suite.steps = 3;
  EXPECT_EQ(run().ran, 4);  // all that is trained; neither Performer nor the degrees of freedom
}

TEST_F(Reproduce, ADivergingRunIsNamedAndTheOthersAreThere) {
  suite.strategies = {PlanStrategy::kFix};
  suite.losses = {LossKind::kSoftmax, LossKind::kL2};
  suite.seeds = {1};
  suite.steps = 60;
  suite.learning_rates["softmax"] = {1000, 1000};
  const MatrixOutcome outcome = run();
  ASSERT_EQ(outcome.failed.size(), 1u);
  EXPECT_EQ(outcome.failed[0].name, "c4-fix-softmax-s1");
  EXPECT_THAT(outcome.failed[0].error, HasSubstr("layer "));
  const std::string text = tables(outcome);
  EXPECT_THAT(text, HasSubstr("| c4-fix-softmax-s1 | layer "));
  const ResultTable table = loss_table(*study, *folder, 4);
  EXPECT_EQ(table.rows[0].cells[0].text, "–");
  EXPECT_NE(table.rows[0].cells[1].text, "–");
}

TEST_F(Reproduce, AccuraciesOfTeacherAndStudents) {
  ask_wsc({1e-3});
  const MatrixOutcome outcome = run();
  EXPECT_THAT(outcome.failed, IsEmpty());
  EXPECT_EQ(outcome.ran, 2 + 2 + 2);  // tasks: teacher and the student of the first seed
  const TaskAccuracy teacher = read_task(*folder, "wsc", nullptr);
  EXPECT_EQ(teacher.chance, 0.5);
  ASSERT_TRUE(teacher.finetuned);
  const ResultTable table = task_table(*study, *folder, 4, true);
  EXPECT_EQ(table.rows[1].labels[1], "teacher");
  EXPECT_EQ(table.rows[1].cells[0].text, fmt::format("{:.4f}", teacher.finetuned->mean));
  EXPECT_EQ(table.rows[1].cells[2].text, "0.6538");  // the paper's teacher
  EXPECT_EQ(table.rows[2].cells[2].text, "0.6154");  // its Fix with softmax
  // Zero-shot alone is another run, and needs no training questions.
  suite.tasks->finetune = false;
  fs::remove(suite.tasks->data / "wsc/train.jsonl");
  EXPECT_EQ(run().ran, 2);
  EXPECT_FALSE(read_task(*folder, "wsc", nullptr).finetuned);
}

// As the paper does: the teacher is fine-tuned with every rate, and students with its best.
TEST_F(Reproduce, TheRateOfStudentsIsTheTeachersBest) {
  suite.seeds = {1};
  const std::vector<double> rates = {1e-6, 1e-3, 1e-2};
  ask_wsc(rates);
  const MatrixOutcome outcome = run();
  EXPECT_THAT(outcome.failed, IsEmpty());
  EXPECT_EQ(outcome.ran, 1 + 1 + 3 + 1 + 1);  // dof, student, rates, the choice, the student again
  const Json& teacher = folder->result("task-wsc-teacher");
  double best = -1, best_at = 0;
  for (const double rate : rates) {
    const Json& tried = folder->result(fmt::format("task-wsc-teacher-lr{:g}", rate));
    EXPECT_EQ(folder->find(fmt::format("task-wsc-teacher-lr{:g}", rate))
                  ->settings["finetune"]["learning_rate"],
              rate);
    if (const double accuracy = tried["finetuned"]["acc"]; accuracy > best)
      best = accuracy, best_at = rate;
  }
  EXPECT_EQ(teacher["learning_rate"], best_at);
  EXPECT_EQ(teacher["finetuned"]["acc"], best);
  EXPECT_EQ(teacher["tried"].size(), 3u);
  EXPECT_EQ(folder->find("task-wsc-c4-fix-softmax-s1")->settings["finetune"]["learning_rate"],
            best_at);
  EXPECT_EQ(run().ran, 0);
}

// The small GPT-NeoX of the fixtures with the first tokens of wiki-mini's vocabulary.
fs::path small_gpt_neox(const fs::path& folder) {
  fs::copy(test::fixtures() / "gpt_neox", folder);
  Json tokenizer = load_json(fs::path(DOFLA_SOURCE_DIR) / "assets/wiki-mini/tokenizer.json");
  Json vocabulary, merges = Json::array();
  for (const auto& [token, id] : tokenizer["model"]["vocab"].items())
    if (id < 300) vocabulary[token] = id;
  for (const Json& merge : tokenizer["model"]["merges"])
    if (vocabulary.contains(merge[0].get<std::string>() + merge[1].get<std::string>()))
      merges.push_back(merge);
  tokenizer["model"]["vocab"] = std::move(vocabulary);
  tokenizer["model"]["merges"] = std::move(merges);
  write_whole(folder / "tokenizer.json", tokenizer.dump());
  return folder;
}

// The suite of the paper's larger model, on a small one of its family: only sizes differ.
TEST_F(Reproduce, ThePythiaSuiteRunsOnASmallGptNeoX) {
  Suite pythia = read_suite(fs::path(DOFLA_SOURCE_DIR) / "examples/pythia-1b.json");
  EXPECT_EQ(pythia.costs, std::vector<int64_t>{128});
  EXPECT_EQ(pythia.dof.lambda, 0x1p-8);
  EXPECT_EQ(pythia.length, 2048);
  EXPECT_EQ(pythia.tasks->learning_rates,
            (std::vector<double>{1e-7, 5e-7, 1e-6, 5e-6, 1e-5, 5e-5}));
  const fs::path data = scratch.path() / "tasks";
  test::write_task_files(data);
  fs::copy_file(data / "wsc/val.jsonl", data / "wsc/train.jsonl");
  pythia.teacher = small_gpt_neox(scratch.path() / "gpt_neox");
  pythia.data = suite.data;
  pythia.length = suite.length;
  pythia.held_out = suite.held_out;
  pythia.steps = pythia.batch = 2;
  pythia.seeds = {1};
  pythia.dof.samples = 32;
  pythia.dof_sequences = 4;
  pythia.timing = {8};
  pythia.tasks->names = {"wsc"};
  pythia.tasks->data = data;
  suite = pythia;
  const MatrixOutcome outcome = run();
  EXPECT_THAT(outcome.failed, IsEmpty());
  EXPECT_THAT(tables(outcome), HasSubstr("_neox with 3 layers of 4 heads"));
  // The batch and the epochs are the paper's for Pythia-1B, the rate is the teacher's best.
  const Json& settings = folder->find("task-wsc-c128-dof-softmax-s1")->settings["finetune"];
  EXPECT_EQ(settings["batch"], 64);
  EXPECT_EQ(settings["learning_rate"], folder->result("task-wsc-teacher")["learning_rate"]);
}

TEST_F(Reproduce, WhatDoesNotFitIsSaidBeforeAnythingRuns) {
  const auto open = [&] { return open_study(suite, scratch.path() / "out", Device()); };
  suite.length = 1000;
  test::expect_error(open, {"length of 1000", "context of 512"});
  suite.length = 32;
  suite.timing = {513};
  test::expect_error(open, {"timing of 513", "context of 512"});
  suite.timing = {};
  suite.held_out = 100000;
  test::expect_error(open, {"100000 are held out"});
  suite.held_out = 2;
  suite.teacher = scratch.path();
  test::expect_error(open, {"config.json"});
}

TEST_F(Reproduce, MissingTaskFilesAreSaidBeforeAnythingRuns) {
  suite.tasks.emplace();
  suite.tasks->names = {"wsc"};
  suite.tasks->data = scratch.path();
  test::expect_error([&] { run(); }, {"wsc"});
  EXPECT_TRUE(fs::is_empty(scratch.path() / "out/runs"));
}

}  // namespace
}  // namespace dofla
