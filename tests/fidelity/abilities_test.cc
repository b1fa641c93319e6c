#include "dofla/fidelity/abilities.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dofla {
namespace {

using testing::HasSubstr;

Abilities some_abilities(int64_t exact, double last_words, double induction) {
  Abilities abilities;
  abilities.recall.recall = {{64, 100, exact, 0, 0.2}, {128, 100, exact, 0, 0.2}};
  abilities.recall.needle = {{200, 0.5, 100, exact, 0}};
  abilities.recall.induction = {{128, induction, 0.001}};
  abilities.last_words = LastWords{.words = 400, .acc = {last_words, 0.02}};
  abilities.continuations = {{1, 2, 3, 4}, {1, 2, 3, 4}};
  return abilities;
}

const Finding& about(const std::vector<Finding>& findings, const std::string& what) {
  for (const Finding& finding : findings)
    if (finding.about == what) return finding;
  throw std::runtime_error("no finding about " + what);
}

TEST(AbilityFindings, GradeWhatIsKeptOfTheTeacher) {
  const Abilities teacher = some_abilities(90, 0.5, 0.9);
  Abilities student = some_abilities(50, 0.5, 0.8);
  student.continuations = {{1, 2, 3, 4}, {1, 9, 3, 4}};
  const auto findings = ability_findings(student, teacher);
  EXPECT_EQ(about(findings, "recall").grade, Grade::kFar);          // 0.3 of 0.7
  EXPECT_EQ(about(findings, "needle in text").grade, Grade::kFar);  // 0.5 of 0.9
  EXPECT_EQ(about(findings, "induction").grade, Grade::kClose);     // 0.8 of 0.9
  EXPECT_EQ(about(findings, "last words").grade, Grade::kEqual);
  EXPECT_THAT(about(findings, "recall").words, HasSubstr("50.0 % right, its teacher 90.0 %"));
  EXPECT_EQ(about(findings, "greedy text").grade, std::nullopt);
  EXPECT_THAT(about(findings, "greedy text").words, HasSubstr("50 % of 2 texts"));
}

TEST(AbilityFindings, OfATeacherItselfAreEqual) {
  const Abilities same = some_abilities(90, 0.5, 0.9);
  for (const Finding& finding : ability_findings(same, same))
    if (finding.grade) {
      EXPECT_EQ(*finding.grade, Grade::kEqual) << finding.about;
    }
}

TEST(AbilityFindings, SayNothingWhereTheTeacherGuesses) {
  const Abilities teacher = some_abilities(22, 0.05, 0.01), student = some_abilities(0, 0, 0);
  const auto findings = ability_findings(student, teacher);
  const Finding& untold = about(findings, "cannot be told");
  EXPECT_EQ(untold.grade, std::nullopt);
  for (const char* part : {"recall", "induction", "last words"})
    EXPECT_THAT(untold.words, HasSubstr(part));
  EXPECT_EQ(about(findings, "needle in text").grade, Grade::kFar);
}

// Names in the list of what cannot be told hold no commas of their own.
TEST(AbilityFindings, WrittenAnswersAreAnAbilityOfTheirOwn) {
  Abilities teacher, student;
  LetteredResult written;
  written.questions = 40;
  written.acc.mean = written.chance = 0.25;
  teacher.tasks.push_back({.task = "mmlu", .chance = 0.25});
  teacher.tasks.back().result.questions = 40;
  teacher.tasks.back().result.acc.mean = 0.25;
  teacher.tasks.back().generated = written;
  student.tasks = teacher.tasks;
  EXPECT_THAT(about(ability_findings(student, teacher), "cannot be told").words,
              HasSubstr("mmlu, mmlu (written): the teacher"));
}

// Distances that only a student can read are shown, and not compared.
TEST(AbilityFindings, CompareOnlyWhatBothWereAsked) {
  const Abilities teacher = some_abilities(90, 0.5, 0.9);
  Abilities student = teacher;
  student.recall.recall.push_back({4096, 100, 0, 0, 0.2});
  EXPECT_EQ(about(ability_findings(student, teacher), "recall").grade, Grade::kEqual);
}

}  // namespace
}  // namespace dofla
