#include "dofla/reproduce/run.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dofla/core/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/fixtures.h"

namespace dofla {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class RunMatrix : public testing::Test {
 protected:
  // A run that notes its name when it works.
  dofla::Run noting(const std::string& name, const Json& settings = 1) {
    return {name, "kind", [settings] { return settings; },
            [this, name](const Progress&) {
              worked.push_back(name);
              return Json{{"of", name}};
            }};
  }
  dofla::Run failing(const std::string& name) {
    return {name, "kind", [] { return Json(1); }, [](const Progress&) -> Json { fail("broke"); }};
  }
  // As after a new start of the program: the folder is read again.
  MatrixOutcome run(const std::vector<dofla::Run>& runs, const MatrixObserver& observer = {}) {
    RunFolder folder(scratch.path() / "runs");
    return run_matrix(runs, folder, observer);
  }

  const test::ScratchFolder scratch;
  std::vector<std::string> worked;
};

TEST_F(RunMatrix, DoesWhatIsNotDone) {
  EXPECT_EQ(run({noting("a"), noting("b")}).ran, 2);
  const MatrixOutcome again = run({noting("a"), noting("c"), noting("b")});
  EXPECT_EQ(again.ran, 1);
  EXPECT_EQ(again.skipped, 2);
  EXPECT_THAT(worked, ElementsAre("a", "b", "c"));
  const RunFolder folder(scratch.path() / "runs");
  EXPECT_EQ(folder.result("b"), (Json{{"of", "b"}}));
  EXPECT_EQ(folder.find("d"), nullptr);
  test::expect_error([&] { folder.result("d"); }, {"needs d", "has not been run"});
}

TEST_F(RunMatrix, ChangedSettingsAreDoneAgain) {
  run({noting("a", {{"steps", 5}}), noting("b", {{"rate", 0.1}})});
  run({noting("a", {{"steps", 6}}), noting("b", {{"rate", 0.1}})});
  EXPECT_THAT(worked, ElementsAre("a", "b", "a"));
}

TEST_F(RunMatrix, AFailureIsRecordedAndTheRestGoesOn) {
  const MatrixOutcome outcome = run({noting("a"), failing("b"), noting("c")});
  EXPECT_EQ(outcome.ran, 3);
  ASSERT_EQ(outcome.failed.size(), 1u);
  EXPECT_EQ(outcome.failed[0].name, "b");
  EXPECT_EQ(outcome.failed[0].error, "broke");
  EXPECT_THAT(worked, ElementsAre("a", "c"));
  const RunFolder folder(scratch.path() / "runs");
  EXPECT_EQ(folder.find("b")->error, "broke");
  test::expect_error([&] { folder.result("b"); }, {"needs b", "failed"});
  // It is tried again, and may go well.
  EXPECT_THAT(run({noting("a"), noting("b"), noting("c")}).failed, IsEmpty());
  EXPECT_THAT(worked, ElementsAre("a", "c", "b"));
}

TEST_F(RunMatrix, WhatNeedsAFailedRunFailsToo) {
  RunFolder folder(scratch.path() / "runs");
  dofla::Run depending = noting("b");
  depending.settings = [&] { return folder.result("a"); };
  const MatrixOutcome outcome = run_matrix({failing("a"), depending, noting("c")}, folder);
  ASSERT_EQ(outcome.failed.size(), 2u);
  EXPECT_EQ(outcome.failed[1].error, "needs a, which failed");
  EXPECT_THAT(worked, ElementsAre("c"));
}

TEST_F(RunMatrix, ADamagedRecordIsAsGoodAsNone) {
  run({noting("a"), noting("b"), noting("c"), noting("d")});
  worked.clear();
  const fs::path runs = scratch.path() / "runs";
  std::ofstream(runs / "a.json") << R"({"format": "dofla.run", "ver)";
  std::ofstream(runs / "b.json") << R"({"format": "dofla.run", "version": 1, "name": "b"})";
  fs::copy_file(runs / "d.json", runs / "c.json", fs::copy_options::overwrite_existing);
  run({noting("a"), noting("b"), noting("c"), noting("d")});
  EXPECT_THAT(worked, ElementsAre("a", "b", "c"));
}

TEST_F(RunMatrix, OnlyWhatIsWantedAndStaleRecordsDoNotCount) {
  run({noting("a", 1), noting("b", 1), noting("c", 1)});
  worked.clear();
  RunFolder folder(scratch.path() / "runs");
  MatrixObserver observer;
  observer.wanted = [](const dofla::Run& run) { return run.name == "c"; };
  const MatrixOutcome outcome =
      run_matrix({noting("a", 1), noting("b", 2), noting("c", 2)}, folder, observer);
  EXPECT_EQ(outcome.ran, 1);
  EXPECT_THAT(worked, ElementsAre("c"));
  EXPECT_NE(folder.find("a"), nullptr);
  EXPECT_EQ(folder.find("b"), nullptr);
  EXPECT_TRUE(fs::exists(folder.path() / "b.json"));
}

TEST_F(RunMatrix, TheObserverLearnsWhereTheMatrixIs) {
  std::vector<std::string> seen;
  MatrixObserver observer;
  observer.starts = [&](const RunStart& start) {
    seen.push_back(fmt::format("{} {}/{} {}", start.run.name, start.number, start.total,
                               start.seconds_left.has_value()));
    return Progress();
  };
  observer.ends = [&](const RunRecord& record) { seen.push_back(record.name + " ended"); };
  run({noting("a"), noting("b")}, observer);
  // Nothing is known of the time before the first run has ended.
  EXPECT_THAT(seen, ElementsAre("a 0/2 false", "a ended", "b 1/2 true", "b ended"));
}

TEST_F(RunMatrix, TheTimeLeftFollowsFromRunsOfTheSameKind) {
  RunFolder folder(scratch.path() / "runs");
  const auto record = [&](const std::string& name, double seconds) {
    folder.save({.name = name, .settings = 1, .result = 1, .error = {}, .seconds = seconds});
  };
  record("a", 10);
  record("b", 30);
  dofla::Run slow = noting("b"), last = noting("d");
  slow.kind = "slow";
  last.kind = "slow";
  std::vector<double> left;
  MatrixObserver observer;
  observer.starts = [&](const RunStart& start) {
    left.push_back(start.seconds_left.value_or(-1));
    return Progress();
  };
  run_matrix({noting("a"), slow, noting("c"), last}, folder, observer);
  ASSERT_EQ(left.size(), 2u);
  EXPECT_DOUBLE_EQ(left[0], 10 + 30);
  EXPECT_DOUBLE_EQ(left[1], 30);
}

}  // namespace
}  // namespace dofla
