#include "dofla/fidelity/divergence.h"

#include <cmath>

#include <gtest/gtest.h>

#include "dofla/core/random.h"

namespace dofla {
namespace {

TokenStatistics token(double teacher_loss, double student_loss, double kl) {
  return {.teacher_loss = teacher_loss, .student_loss = student_loss, .kl = kl};
}

TEST(Divergence, MeansAreOverTokensNotWindows) {
  TokenStatistics sure = token(std::log(2), std::log(4), 0.5);
  sure.teacher_entropy = 1, sure.student_entropy = 1.5;
  sure.teacher_top = 3, sure.student_top = 4, sure.target = 3, sure.shared_top = 3;
  sure.teacher_top_p = 0.5, sure.student_top_p = 0.25;
  TokenStatistics equal = token(std::log(10), std::log(10), 0);
  equal.shared_top = 5;
  equal.teacher_top_p = equal.student_top_p = 0.95;
  const std::vector<WindowStatistics> windows = {{sure}, {equal, equal, equal}};
  const Divergence d = divergence_of(windows);
  EXPECT_EQ(d.tokens, 4);
  EXPECT_EQ(d.windows, 2);
  EXPECT_NEAR(d.teacher_loss, (std::log(2) + 3 * std::log(10)) / 4, 1e-12);
  EXPECT_NEAR(d.added(), std::log(2) / 4, 1e-12);
  EXPECT_NEAR(d.perplexity_ratio(), std::pow(2, 0.25), 1e-12);
  EXPECT_NEAR(d.kl, 0.125, 1e-12);
  EXPECT_NEAR(d.p_change, -0.25 / 4, 1e-12);
  EXPECT_NEAR(d.p_change_rms, 0.25 / 2, 1e-12);
  EXPECT_EQ(d.same_top, 0.75);
  EXPECT_NEAR(d.top5_overlap, (0.6 + 3) / 4, 1e-12);
  EXPECT_NEAR(d.entropy_change, 0.125, 1e-12);
  EXPECT_EQ(d.kl_median, 0);
  EXPECT_EQ(d.kl_max, 0.5);
  // Teacher: 0.5 and right once; 0.95 and right (token 0) three times. Student: 0.25 and wrong.
  EXPECT_NEAR(d.teacher_calibration.error, (0.5 + 3 * 0.05) / 4, 1e-12);
  EXPECT_NEAR(d.calibration.error, (0.25 + 3 * 0.05) / 4, 1e-12);
  EXPECT_EQ(d.calibration.bins[2].tokens, 1);
  EXPECT_EQ(d.calibration.bins[9].tokens, 3);
  EXPECT_NEAR(d.calibration.bins[9].confidence, 0.95, 1e-12);
  EXPECT_EQ(d.calibration.bins[9].accuracy, 1);
  EXPECT_EQ(d.calibration.bins[2].accuracy, 0);
}

TEST(Divergence, OfAStudentEqualToItsTeacherIsZero) {
  const std::vector<WindowStatistics> windows(3, WindowStatistics(5, token(2, 2, 0)));
  const Divergence d = divergence_of(windows);
  for (const double zero : {d.added(), d.kl, d.kl_stderr, d.added_stderr, d.kl_999, d.kl_max,
                            d.p_change, d.p_change_rms, d.entropy_change})
    EXPECT_EQ(zero, 0);
  EXPECT_EQ(d.perplexity_ratio(), 1);
  EXPECT_EQ(d.same_top, 1);
}

TEST(Divergence, PercentilesAreThoseOfTheTokens) {
  WindowStatistics window;
  for (int i = 1000; i >= 0; --i) window.push_back(token(1, 1, i));
  const Divergence d = divergence_of(std::vector<WindowStatistics>{window});
  EXPECT_EQ(d.kl_median, 500);
  EXPECT_EQ(d.kl_90, 900);
  EXPECT_EQ(d.kl_95, 950);
  EXPECT_EQ(d.kl_99, 990);
  EXPECT_EQ(d.kl_999, 999);
  EXPECT_EQ(d.kl_max, 1000);
  EXPECT_TRUE(std::isnan(d.kl_stderr));  // of a single window nothing is known
}

TEST(Quantile, GoesLinearlyBetweenNumbers) {
  const std::vector<double> numbers = {1, 2, 4};
  EXPECT_EQ(quantile(numbers, 0), 1);
  EXPECT_EQ(quantile(numbers, 0.25), 1.5);
  EXPECT_EQ(quantile(numbers, 0.75), 3);
  EXPECT_EQ(quantile(numbers, 1), 4);
  EXPECT_THROW(quantile({}, 0.5), std::invalid_argument);
}

// Of equally long windows the bootstrap's standard error is that of their mean:
// √((n − 1)/n) · s/√n, but for the error of a thousand draws (√(1/2000), 2.2 %).
TEST(Bootstrap, IsTheStandardErrorOfTheMeanOfEqualWindows) {
  Random random(4);
  std::vector<double> sums, counts;
  double mean = 0, squares = 0;
  for (int i = 0; i < 30; ++i) {
    sums.push_back(10 * (3 + random.normal()));
    counts.push_back(10);
    mean += sums.back() / 10 / 30;
  }
  for (const double sum : sums) squares += (sum / 10 - mean) * (sum / 10 - mean);
  const double expected = std::sqrt(squares / 30 / 30);
  EXPECT_NEAR(bootstrap_stderr(sums, counts), expected, 0.1 * expected);
  EXPECT_EQ(bootstrap_stderr(sums, counts), bootstrap_stderr(sums, counts));
}

// Windows of different kinds and lengths, tokens of a window alike: ± 1.96 standard errors must
// cover the true mean 95 % of the time, a little less with 40 windows. Tokens taken for independent
// would cover it in half of the cases.
TEST(Bootstrap, IntervalsCover) {
  constexpr int kTrials = 400, kWindows = 40;
  int covered = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    Random random(9, static_cast<uint64_t>(trial));
    std::vector<double> sums, counts;
    double sum = 0, count = 0;
    for (int w = 0; w < kWindows; ++w) {
      const double tokens = 50 + static_cast<double>(random.below(100));
      const double own = std::exp(0.8 * random.normal());  // mean exp(0.32)
      double window = 0;
      for (int t = 0; t < tokens; ++t) window += own * -std::log(1 - random.uniform());
      sums.push_back(window);
      counts.push_back(tokens);
      sum += window;
      count += tokens;
    }
    covered += std::abs(sum / count - std::exp(0.32)) <= 1.96 * bootstrap_stderr(sums, counts);
  }
  const double share = covered / double{kTrials};
  EXPECT_GT(share, 0.87);
  EXPECT_LT(share, 0.99);
}

}  // namespace
}  // namespace dofla
