#include "dofla/train/schedule.h"

#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

namespace dofla {
namespace {

std::vector<double> rates(const Schedule& schedule) {
  std::vector<double> all;
  for (int64_t step = 0; step < schedule.steps; ++step) all.push_back(rate_at(schedule, step));
  return all;
}

TEST(Schedule, FallsLinearly) {
  EXPECT_EQ(rates({.steps = 4}), (std::vector<double>{1, 0.75, 0.5, 0.25}));
}

TEST(Schedule, RisesFirst) {
  EXPECT_EQ(rates({.steps = 8, .warmup = 0.5}),
            (std::vector<double>{0.25, 0.5, 0.75, 1, 1, 0.75, 0.5, 0.25}));
  EXPECT_EQ(rates({.steps = 5, .warmup = 0.01}), (std::vector<double>{1, 1, 0.75, 0.5, 0.25}));
}

TEST(Schedule, OrStays) {
  EXPECT_EQ(rates({.steps = 4, .warmup = 0.5, .decay = Decay::kNone}),
            (std::vector<double>{0.5, 1, 1, 1}));
}

TEST(Schedule, HasNoOtherSteps) {
  EXPECT_THROW(rate_at({.steps = 4}, 4), std::invalid_argument);
  EXPECT_THROW(rate_at({.steps = 4}, -1), std::invalid_argument);
  EXPECT_THROW(rate_at({.steps = 4, .warmup = 1}, 0), std::invalid_argument);
}

}  // namespace
}  // namespace dofla
