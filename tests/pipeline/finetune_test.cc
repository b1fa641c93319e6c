// Fine-tuning as a library call; tests/cli/finetune_test.cc has it as a user meets it.
#include "dofla/pipeline/finetune.h"

#include <cmath>

#include <gtest/gtest.h>

#include "dofla/pipeline/teach.h"
#include "tests/support/expect_error.h"
#include "tests/support/fixtures.h"
#include "tests/support/task_files.h"

namespace dofla {
namespace {

class FinetuneOnText : public testing::Test {
 protected:
  static DistillText some_text() {
    std::vector<TokenIds> windows(6, TokenIds(16));
    for (size_t i = 0; i < windows.size(); ++i)
      for (size_t t = 0; t < windows[i].size(); ++t)
        windows[i][t] = static_cast<int64_t>(3 + (7 * i + t * t) % 400);
    return split_held_out(windows, 2);
  }
  static FinetuneOptions still() {
    FinetuneOptions options = text_finetune_options(true);
    options.epochs = 1;
    options.learning_rate = 0;
    return options;
  }

  const Checkpoint model{test::tests_folder() / "models/stories260K"};
  const test::ScratchFolder scratch;
  const DistillText text = some_text();
};

TEST_F(FinetuneOnText, TellsOfTheRunAndTheTeacher) {
  const Finetuned tuned = finetune_on_text(model, {.model = &model}, text, {}, still());
  ASSERT_TRUE(tuned.divergence);
  EXPECT_LT(tuned.divergence->kl, 1e-5);  // from itself
  EXPECT_EQ(tuned.result.run["teacher"], model.folder().string());
  EXPECT_EQ(tuned.result.run["sequence_length"], 16);
  EXPECT_EQ(tuned.result.run["held_out"], fingerprint_of(text.held_out));
  EXPECT_GT(tuned.seconds, 0);
  EXPECT_FALSE(finetune_on_text(model, {}, text, {}, still()).divergence);
}

TEST_F(FinetuneOnText, BesideATeacherTheDivergenceJudges) {
  FinetuneOptions options = still();
  const FinetuneResult alone = finetune_on_text(model, {}, text, {}, options).result;
  EXPECT_EQ(alone.before.score, -alone.before.loss);

  // A student that has learnt the windows themselves: nearer to the text than its teacher.
  options.learning_rate = 1e-2;
  const fs::path folder = scratch.path() / "student";
  write_finetuned(folder, model, finetune_on_text(model, {}, text, {}, options));
  const Checkpoint student(folder);
  options.learning_rate = 1e-3;
  const Finetuned tuned = finetune_on_text(student, {.model = &model}, text, {}, options);
  const FinetuneResult& result = tuned.result;
  EXPECT_LT(result.before.loss, alone.before.loss);
  EXPECT_GT(result.epochs[0].loss, result.before.loss);    // further from the text
  EXPECT_GT(result.epochs[0].score, result.before.score);  // and nearer to the teacher
  EXPECT_EQ(result.kept, 1);
  ASSERT_TRUE(tuned.divergence);
  EXPECT_NEAR(tuned.divergence->kl, -result.epochs[0].score, 1e-9);
  EXPECT_NEAR(tuned.divergence->loss, result.epochs[0].loss, 1e-9);
}

TEST_F(FinetuneOnText, TheFolderHasTheRunAndWhereItComesFrom) {
  const fs::path out = scratch.path() / "tuned";
  write_finetuned(out, model, finetune_on_text(model, {}, text, {}, still()),
                  {{"data", {"a.txt"}}});
  const Json about = load_json(out / "config.json")["training"];
  EXPECT_EQ(about["windows"], 4);
  EXPECT_EQ(about["data"], Json::array({"a.txt"}));
  test::expect_error(
      [&] { write_finetuned(out, model, finetune_on_text(model, {}, text, {}, still())); },
      {"tuned", "exists"});
}

TEST_F(FinetuneOnText, ATeacherHasTheTokensOfItsStudent) {
  const Checkpoint other(test::fixtures() / "gpt2");
  test::expect_error([&] { finetune_on_text(model, {.model = &other}, text, {}, still()); },
                     {"gpt2", "a vocabulary of", "the tokens of its teacher"});
}

TEST_F(FinetuneOnText, AFileStandsForTheTeacher) {
  const fs::path path = scratch.path() / "teacher";
  std::vector<TokenIds> all = text.train.all();
  for (const TokenIds& window : text.held_out) all.push_back(window);
  const Taught taught = teach(path, model, all, 20);
  EXPECT_EQ(taught.header.windows, 6);
  EXPECT_EQ(taught.bytes, static_cast<int64_t>(fs::file_size(path)));
  EXPECT_GT(taught.named, 20.0 / 512);
  const TeacherFile file(path);
  const Finetuned tuned = finetune_on_text(model, {.file = &file}, text, {}, still());
  EXPECT_LT(std::abs(tuned.result.epoch_loss(0)), 1e-4);  // it says what the student says
  EXPECT_EQ(tuned.result.run["taught"]["top"], 20);
  EXPECT_FALSE(tuned.divergence);
  EXPECT_THROW(finetune_on_text(model, {.model = &model, .file = &file}, text, {}, still()),
               std::invalid_argument);

  const Checkpoint other(test::fixtures() / "gpt2");
  test::expect_error([&] { finetune_on_text(other, {.file = &file}, text, {}, still()); },
                     {"teacher", "a vocabulary of 512"});
  const DistillText elsewhere = split_held_out(std::vector<TokenIds>(6, TokenIds(16, 5)), 2);
  test::expect_error([&] { finetune_on_text(model, {.file = &file}, elsewhere, {}, still()); },
                     {"is of another text"});
  test::expect_error([&] { teach(path, model, all, 513); }, {"vocabulary of 512"});
}

TEST_F(FinetuneOnText, QuestionsAreOfTheSplitsThatTasksName) {
  test::write_task_files(scratch.path());
  fs::copy(scratch.path() / "piqa/valid.jsonl", scratch.path() / "piqa/train.jsonl");
  fs::copy(scratch.path() / "piqa/valid-labels.lst", scratch.path() / "piqa/train-labels.lst");
  const Task& task = find_task("piqa");
  const FinetuneQuestions all = read_finetune_questions(task, scratch.path(), 0, 0);
  const FinetuneQuestions some = read_finetune_questions(task, scratch.path(), 2, 1);
  EXPECT_EQ(all.train.size(), 2u);
  EXPECT_EQ(all.judged.size(), 2u);
  EXPECT_EQ(some.train.size(), 2u);
  EXPECT_EQ(some.judged.size(), 1u);
}

}  // namespace
}  // namespace dofla
