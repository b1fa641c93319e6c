// Evaluation as library calls; tests/cli has it as a user meets it.
#include "dofla/pipeline/evaluate.h"

#include <gtest/gtest.h>

#include "dofla/linear/linear_model.h"
#include "tests/support/expect_error.h"
#include "tests/support/fixtures.h"
#include "tests/support/task_files.h"

namespace dofla {
namespace {

class EvaluateFolder : public testing::Test {
 protected:
  EvaluateFolder() { write_whole(ids, Json::array({{1, 20, 300, 4, 50}, {7, 8, 9}}).dump()); }

  const Checkpoint model{test::tests_folder() / "models/stories260K"};
  const test::ScratchFolder scratch;
  const fs::path ids = scratch.path() / "ids.json";
};

TEST_F(EvaluateFolder, HasTheLossOfTheModelOrOfItsLatestKeys) {
  const auto loss = [&](const std::optional<ExactKeys>& exact) {
    return evaluate_text(model, exact, open_windows(model, {.ids = ids}), {}, {}).next_token.loss;
  };
  const Windows text = open_windows(model, {.ids = ids});
  EXPECT_EQ(loss({}), evaluate_next_token(load_model(model), text.next, 6).loss);
  EXPECT_NE(loss(ExactKeys{.keys = 3, .sinks = 1, .recent = 1, .block = 1}), loss({}));
}

TEST_F(EvaluateFolder, BesideItselfNothingIsLost) {
  const Windows text = open_windows(model, {.ids = ids});
  const TeacherEvaluation found = evaluate_beside_teacher(model, model, text, {}, {});
  EXPECT_LT(found.divergence.kl, 1e-6);
  EXPECT_EQ(found.divergence.tokens, 6);
  EXPECT_EQ(std::ssize(found.attention_error), model.config().layers);
  EXPECT_TRUE(found.controls.measured.empty());  // it is no student
}

TEST_F(EvaluateFolder, TasksAreAllReadBeforeTheModel) {
  test::write_task_files(scratch.path());
  fs::remove_all(scratch.path() / "wsc");
  test::expect_error(
      [&] {
        evaluate_tasks(scratch.path() / "no-model",
                       {.names = {"piqa", "wsc"}, .data = scratch.path()}, {});
      },
      {"wsc"});
  const TaskEvaluations found =
      evaluate_tasks(model.folder(), {.names = {"piqa"}, .data = scratch.path(), .limit = 2}, {});
  EXPECT_EQ(found.questions, 2);
  EXPECT_EQ(found.tasks.front().result.questions, 2);
  EXPECT_EQ(found.tasks.front().chance, 0.5);
}

}  // namespace
}  // namespace dofla
