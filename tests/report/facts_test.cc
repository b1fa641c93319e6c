// The figures at the head of a section.
#include "dofla/report/facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dofla {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string fact(const std::string& name, const std::string& value) {
  return "<dt>" + name + "</dt><dd>" + value + "</dd>";
}

TEST(ReportFacts, OfDegreesOfFreedom) {
  DofSection dof = {0x1p-6, "max", 12345, 8, {}};
  dof.layers = {{{{3, 0, {}}, {5, 0, {}}, {1, 0, {}}}, {}},
                {{{9.25, 0, {}}, {2, 0, {}}}, {}},
                {{{4, 0, {}}}, {}}};
  const std::string facts = dof_facts(dof);
  EXPECT_THAT(facts, HasSubstr(fact("Layers × heads", "3 × 3")));
  EXPECT_THAT(facts, HasSubstr(fact("Largest head", "9.2<small>layer 2, head 1</small>")));
  EXPECT_THAT(facts, HasSubstr(fact("Median head", "3.5")));  // of 1 2 3 4 5 9.25
  EXPECT_THAT(facts, HasSubstr(fact("λ", "2⁻⁶")));
  EXPECT_THAT(facts, HasSubstr(fact("Gram scale", "<bdi>max</bdi>")));
  EXPECT_THAT(facts, HasSubstr(fact("Samples × draws", "12\u202F345 × 8")));
  dof.layers.pop_back();
  EXPECT_THAT(dof_facts(dof), HasSubstr(fact("Median head", "3.0")));
}

TEST(ReportFacts, OfAPlan) {
  const PlanSection plan = {"dof-head", 16, {{{4, 20}, 0}, {{30, 12}, 0}}};
  const std::string facts = plan_facts(plan);
  EXPECT_THAT(facts, HasSubstr(fact("Strategy", "<bdi>dof-head</bdi>")));
  EXPECT_THAT(facts, HasSubstr(fact("Cost C", "16")));
  EXPECT_THAT(facts, HasSubstr(fact("Mean M", "16.5")));
  EXPECT_THAT(facts, HasSubstr(fact("Range of M", "4–30")));
  EXPECT_THAT(facts, Not(HasSubstr("Exact keys")));
}

TEST(ReportFacts, OfAPlanWithExactKeys) {
  PlanSection plan = {"sensitivity", 16, {{{4}, 0, 36}, {{4}, 0, 124}}};
  EXPECT_THAT(plan_facts(plan), HasSubstr(fact("Exact keys", "36–124")));
  plan.layers[0].keys = 124;
  EXPECT_THAT(plan_facts(plan), HasSubstr(fact("Exact keys", "124")));
}

TEST(ReportFacts, OfTraining) {
  TrainingSection training;
  training.teacher_loss = 3.25;
  training.student_loss = 4.125;
  training.kl = 0.625;
  training.same_top = 0.5125;
  training.state_bytes = 2048;
  training.cache_bytes = 3 * 1024 * 1024;
  training.context = 1024;
  training.tokens_per_second = 18342;
  const std::string facts = training_facts(training);
  EXPECT_THAT(facts, HasSubstr(fact("Teacher loss", "3.25")));
  EXPECT_THAT(facts,
              HasSubstr(fact("Student loss", "4.125<small>0.875 above the teacher</small>")));
  EXPECT_THAT(facts, HasSubstr(fact("KL(teacher‖student)", "0.625")));
  EXPECT_THAT(facts, HasSubstr(fact("Same likeliest token", "51.2 %")));
  EXPECT_THAT(facts, HasSubstr(fact("State", "2.0 kB")));
  EXPECT_THAT(facts, HasSubstr(fact("Key/value cache",
                                    "3.1 MB<small>at 1024 tokens, 1536 × the state</small>")));
  EXPECT_THAT(facts, HasSubstr(fact("Speed", "18\u202F342<small>tokens/s</small>")));
}

}  // namespace
}  // namespace dofla
