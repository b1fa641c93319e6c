#include "dofla/report/training_log.h"

#include <limits>

#include <gtest/gtest.h>

#include "dofla/core/json.h"
#include "tests/support/expect_error.h"
#include "tests/support/fixtures.h"

namespace dofla {
namespace {

TrainingStep step(int64_t number) {
  const auto x = static_cast<double>(number);
  return {.step = number,
          .loss = 1 / x,
          .layer_losses = {2 / x, std::numeric_limits<double>::quiet_NaN()},
          .learning_rate = 0.5,
          .alpha_rate = 0.25,
          .tokens_per_second = 100,
          .seconds = 4 * x};
}

void write_steps(const fs::path& file, bool resume, int64_t first, int64_t last) {
  TrainingLog log(file, resume);
  for (int64_t i = first; i <= last; ++i) log.add(step(i));
}

class TrainingLogs : public testing::Test {
 protected:
  const test::ScratchFolder scratch;
  const fs::path csv = scratch.path() / "run.csv", jsonl = scratch.path() / "run.jsonl";
};

TEST_F(TrainingLogs, HaveALineForEveryStep) {
  write_steps(csv, false, 1, 2);
  EXPECT_EQ(
      read_text(csv),
      "step,loss,learning_rate,learning_rate_alpha,tokens_per_second,seconds,layer_1,layer_2\n"
      "1,1,0.5,0.25,100,4,2,\n"
      "2,0.5,0.5,0.25,100,8,1,\n");
  write_steps(jsonl, false, 1, 1);
  EXPECT_EQ(read_text(jsonl),
            "{\"step\":1,\"loss\":1.0,\"learning_rate\":0.5,\"learning_rate_alpha\":0.25,"
            "\"tokens_per_second\":100.0,\"seconds\":4.0,\"layers\":[2.0,null]}\n");
  TrainingStep plain = {.step = 1, .loss = 3, .learning_rate = 0.1};
  const fs::path other = scratch.path() / "plain.csv";
  TrainingLog(other, false).add(plain);
  EXPECT_EQ(read_text(other), "step,loss,learning_rate,tokens_per_second,seconds\n1,3,0.1,0,0\n");
}

// Killed after step 5, whose line was cut short; the last checkpoint was after step 3.
TEST_F(TrainingLogs, HaveNoStepTwiceAfterAResume) {
  for (const fs::path& file : {csv, jsonl}) {
    write_steps(file, false, 1, 5);
    const std::string whole = read_text(file);
    write_whole(file, whole.substr(0, whole.size() - 3));
    TrainingLog log(file, true);
    TrainingStep fourth = step(4);
    fourth.seconds = 1;
    log.add(fourth);
    std::string kept = read_text(file);
    const std::string last = kept.substr(kept.rfind('\n', kept.size() - 2) + 1);
    EXPECT_NE(last.find("13"), std::string::npos) << last;  // 12 seconds up to step 3, and one more
    kept.resize(kept.size() - last.size());
    EXPECT_EQ(kept, whole.substr(0, kept.size()));
    EXPECT_EQ(std::count(kept.begin(), kept.end(), '\n'), file == csv ? 4 : 3);
  }
}

TEST_F(TrainingLogs, RefuseWhatTheyShouldNotWriteTo) {
  test::expect_error([&] { TrainingLog(scratch.path() / "run.txt", false); },
                     {"run.txt", ".csv or .jsonl"});
  write_whole(csv, "a,b\n1,2\n");
  test::expect_error([&] { TrainingLog(csv, false); }, {"run.csv", "exists already"});
  test::expect_error([&] { TrainingLog(csv, true).add(step(1)); }, {"run.csv", "line 2"});
  EXPECT_EQ(read_text(csv), "a,b\n1,2\n");
}

}  // namespace
}  // namespace dofla
