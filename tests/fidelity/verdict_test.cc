#include "dofla/fidelity/verdict.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dofla {
namespace {

using testing::HasSubstr;

Divergence with(double kl, double kl_stderr, double kl_99, double same_top) {
  Divergence d;
  d.kl = kl;
  d.kl_stderr = kl_stderr;
  d.kl_99 = kl_99;
  d.same_top = same_top;
  return d;
}

TEST(Verdict, AGradeNeedsAllOfItsThresholds) {
  EXPECT_EQ(grade_of(with(0.008, 0.001, 0.2, 0.95)), Grade::kEqual);
  EXPECT_EQ(grade_of(with(0.008, 0.0011, 0.2, 0.95)), Grade::kClose);  // with two errors above
  EXPECT_EQ(grade_of(with(0.008, 0, 0.21, 0.95)), Grade::kClose);
  EXPECT_EQ(grade_of(with(0.008, 0, 0.2, 0.949)), Grade::kClose);
  EXPECT_EQ(grade_of(with(0.05, 0, 1, 0.9)), Grade::kClose);
  EXPECT_EQ(grade_of(with(0.051, 0, 1, 0.9)), Grade::kApart);
  EXPECT_EQ(grade_of(with(0.2, 0, 4, 0.75)), Grade::kApart);
  EXPECT_EQ(grade_of(with(0.201, 0, 4, 0.75)), Grade::kFar);
  EXPECT_EQ(grade_of(with(0, 0, 0, 0.7)), Grade::kFar);
  EXPECT_EQ(grade_of(with(0.01, std::nan(""), 0, 1)), Grade::kEqual);  // of a single window
  EXPECT_EQ(grade_of(with(std::nan(""), 0, 0, 1)), Grade::kFar);
}

TEST(Verdict, WhatIsKeptCountsFromChance) {
  EXPECT_EQ(grade_of_kept(0.8, 0.8, 0, 0.25), Grade::kEqual);
  EXPECT_EQ(grade_of_kept(0.9, 0.8, 0, 0.25), Grade::kEqual);
  EXPECT_EQ(grade_of_kept(0.74, 0.8, 0, 0.25), Grade::kClose);  // 0.49 of 0.55
  EXPECT_EQ(grade_of_kept(0.6, 0.8, 0, 0.25), Grade::kApart);   // 0.35 of 0.55
  EXPECT_EQ(grade_of_kept(0.25, 0.8, 0, 0.25), Grade::kFar);
  // Of right answers alone these would be .9625, .8875 and .6875, each a grade better.
  EXPECT_EQ(grade_of_kept(0.77, 0.8, 0, 0.25), Grade::kClose);
  EXPECT_EQ(grade_of_kept(0.71, 0.8, 0, 0.25), Grade::kApart);
  EXPECT_EQ(grade_of_kept(0.55, 0.8, 0, 0.25), Grade::kFar);
  EXPECT_EQ(grade_of_kept(0.3, 0.3, 0, 0.25), std::nullopt);  // a teacher that guesses
  // Three of its standard errors above chance, or nothing is known.
  EXPECT_EQ(grade_of_kept(0.5, 0.5, 0.08, 0.25), Grade::kEqual);
  EXPECT_EQ(grade_of_kept(0.5, 0.5, 0.09, 0.25), std::nullopt);
}

TEST(Verdict, IsAsBadAsTheWorstAndSaysWhere) {
  const Verdict mixed = make_verdict({{Grade::kEqual, "wiki", ""},
                                      {Grade::kFar, "news", ""},
                                      {Grade::kFar, "recall", ""},
                                      {std::nullopt, "memory", ""}});
  EXPECT_EQ(mixed.grade, Grade::kFar);
  EXPECT_EQ(mixed.headline,
            "can replace its teacher on wiki; is another model than its teacher on news, recall");
  EXPECT_EQ(mixed.findings.size(), 4u);
  const Verdict same = make_verdict({{Grade::kClose, "a", ""}, {Grade::kClose, "b", ""}});
  EXPECT_EQ(same.grade, Grade::kClose);
  EXPECT_THAT(same.headline, HasSubstr("on all that was measured"));
}

TEST(Verdict, AFindingHasTheNumbers) {
  Divergence d = with(0.1234, 0.001, 1, 0.876);
  d.loss = 3.5, d.teacher_loss = 3.25;
  const Finding finding = text_finding("wiki", true, d);
  EXPECT_EQ(finding.grade, Grade::kApart);
  EXPECT_EQ(finding.about, "wiki");
  for (const char* part : {"+0.250", "KL 0.123", "87.6 %", "in domain"})
    EXPECT_THAT(finding.words, HasSubstr(part));
  EXPECT_THAT(finding.words, testing::Not(HasSubstr("single window")));
  d.kl_stderr = std::nan("");
  EXPECT_THAT(text_finding("wiki", true, d).words, HasSubstr("in a single window"));
}

}  // namespace
}  // namespace dofla
