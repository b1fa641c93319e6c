#include "cli/progress_bar.h"

#include <gtest/gtest.h>

namespace dofla::cli {
namespace {

TEST(ProgressLine, ShowsShareRateAndRemainingTime) {
  const ProgressUpdate update = {"evaluate", 330'000, 730'000, "tokens"};
  EXPECT_EQ(progress_line(update, 20, 0),
            "evaluate   45%  330k of 730k tokens  16.5k/s  0:25 left");
  EXPECT_EQ(progress_line(update, 20, 80),
            "evaluate [=========>           ]  45%  330k of 730k tokens  16.5k/s  0:25 left");
  EXPECT_LT(progress_line(update, 20, 80).size(), 80u);
  EXPECT_EQ(progress_line({"evaluate", 0, 10, "heads"}, 0, 0),
            "evaluate    0%  0 of 10 heads  0/s");
}

TEST(ProgressLine, SaysWhatItKnowsWhenTheTotalIsUnknown) {
  EXPECT_EQ(progress_line({"read", 1'234'567, 0, "tokens"}, 2, 80), "read  1.23M tokens  617k/s");
}

TEST(ProgressLine, LongWaitsHaveHours) {
  EXPECT_EQ(progress_line({"train", 1, 101, "steps"}, 60, 0),
            "train    0%  1 of 101 steps  0.02/s  1:40:00 left");
}

TEST(ProgressLine, TrainingShowsItsLoss) {
  TrainingStep step;
  step.loss = 2.41349;
  EXPECT_EQ(progress_line({"train", 50, 400, "steps", &step}, 10, 0),
            "train   12%  50 of 400 steps  loss 2.4135  5/s  1:10 left");
}

TEST(ProgressLine, MoreThanTheTotalStaysWithinTheBar) {
  const std::string line = progress_line({"train", 12, 10, "steps"}, 1, 60);
  EXPECT_NE(line.find("100%"), std::string::npos);
  EXPECT_LT(line.size(), 60u);
}

}  // namespace
}  // namespace dofla::cli
