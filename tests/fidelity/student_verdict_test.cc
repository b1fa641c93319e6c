// What is said of a student beside the grades: yardsticks, controls, memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/sample_fidelity.h"

namespace dofla {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<std::string> said(const Verdict& verdict, const std::string& about) {
  std::vector<std::string> words;
  for (const Finding& finding : verdict.findings)
    if (finding.about == about) words.push_back(finding.words);
  return words;
}

ModelConfig some_model() {
  ModelConfig config;
  config.layers = 6, config.kv_heads = 4, config.head_size = 64;
  return config;
}

// Weights of 8 bits are at 0.0015, of 4 bits at 0.22.
TEST(StudentVerdict, SaysWhichRoundingIsAsFar) {
  const FidelityReport report = test::plain_fidelity();
  StudentFidelity student = report.students.front();
  const auto yardstick = [&](double kl) {
    student.all.kl = kl;
    return said(verdict_of(student, report, some_model()), "yardstick");
  };
  EXPECT_THAT(yardstick(0.001),
              ElementsAre("closer to its teacher than weights rounded to 8 bits (KL 0.0015)"));
  EXPECT_THAT(yardstick(0.0015), ElementsAre(HasSubstr("closer to its teacher")));
  EXPECT_THAT(
      yardstick(0.01),
      ElementsAre("as far from its teacher as weights rounded to between 8 bits (KL 0.0015) "
                  "and 4 bits (KL 0.2200)"));
  EXPECT_THAT(
      yardstick(0.55),
      ElementsAre("2.5 times as far from its teacher as weights rounded to 4 bits (KL 0.2200)"));
  FidelityReport without = report;
  without.yardsticks.clear();
  EXPECT_THAT(said(verdict_of(student, without, some_model()), "yardstick"), IsEmpty());
}

TEST(StudentVerdict, SaysOnceWhatIsSaidOfSeveralTexts) {
  const FidelityReport report = test::plain_fidelity();
  StudentFidelity student = report.students.front();
  EXPECT_THAT(said(verdict_of(student, report, some_model()), "controls"), IsEmpty());
  for (TextFidelity& text : student.texts) text.controls.student_loss = 3.4;  // the window: 3.31
  EXPECT_THAT(
      said(verdict_of(student, report, some_model()), "controls"),
      ElementsAre("the linear part does not pay here: the student does not beat a window of "
                  "80 keys alone (on wiki, news)"));
}

TEST(StudentVerdict, SaysWhatFlattersAndWhatItTakes) {
  const FidelityReport report = test::plain_fidelity();
  StudentFidelity student = report.students.front();
  student.texts[0].trained_on = true;
  const Verdict verdict = verdict_of(student, report, some_model());
  EXPECT_THAT(said(verdict, "wiki"),
              ElementsAre(HasSubstr("(in domain)"), HasSubstr("its numbers flatter")));
  EXPECT_THAT(said(verdict, "news"), ElementsAre(HasSubstr("KL 1.200")));
  // A token of the cache: 6 layers, 4 key heads, 64 numbers of a key and of a value, 2 bytes each.
  EXPECT_THAT(said(verdict, "memory"),
              ElementsAre(fmt::format("500.7 kB whatever the length; its teacher's cache is larger "
                                      "from {} tokens on",
                                      500'700 / (6 * 4 * 64 * 2 * 2) + 1)));
  student.cost = report.teacher_cost;
  EXPECT_THAT(said(verdict_of(student, report, some_model()), "memory"),
              ElementsAre("196.6 MB at 32k tokens, and grows with the sequence"));
}

}  // namespace
}  // namespace dofla
