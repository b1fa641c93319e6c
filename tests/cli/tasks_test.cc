// dofla evaluate --task as a user meets it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dofla/data/tasks/task.h"
#include "tests/support/command_line.h"
#include "tests/support/fixtures.h"
#include "tests/support/task_files.h"

namespace dofla {
namespace {

using test::ProcessResult;
using testing::HasSubstr;

class TasksCli : public test::CommandLine {
 protected:
  TasksCli() { test::write_task_files(scratch.path()); }

  std::vector<std::string> evaluate(std::vector<std::string> more) const {
    std::vector<std::string> all = {"evaluate", "--task-data", scratch.path().string()};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
};

TEST_F(TasksCli, EveryTaskGivesAccuraciesAndStandardErrors) {
  std::vector<std::string> arguments;
  for (const Task& task : tasks()) arguments.insert(arguments.end(), {"--task", task.name});
  const Json results = json(evaluate(arguments))["tasks"];
  ASSERT_EQ(results.size(), tasks().size());
  for (size_t i = 0; i < results.size(); ++i) {
    const Json& result = results[i];
    EXPECT_EQ(result["task"], tasks()[i].name);
    EXPECT_EQ(result["split"], tasks()[i].evaluated);
    EXPECT_EQ(result["questions"], 2);
    EXPECT_EQ(result["truncated"], 0);
    EXPECT_EQ(result["not_finite"], 0);
    for (const std::string measure : {"acc", "acc_norm"}) {
      // Of two questions none, one or both are right.
      const double mean = result[measure];
      EXPECT_TRUE(mean == 0 || mean == 0.5 || mean == 1) << mean;
      EXPECT_EQ(result[measure + "_stderr"], mean == 0.5 ? 0.5 : 0);
    }
  }
}

TEST_F(TasksCli, TheTableHasALineATask) {
  const ProcessResult result = run(evaluate({"--task", "wsc", "--task", "arc_easy"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 3);
  EXPECT_THAT(result.out, HasSubstr("\nwsc            validation          2 "));
  EXPECT_THAT(result.out, HasSubstr("\narc_easy       test                2 "));
  EXPECT_THAT(result.err, HasSubstr("questions/s"));
}

TEST_F(TasksCli, LimitSpreadsOverTheQuestions) {
  EXPECT_EQ(json(evaluate({"--task", "piqa", "--limit", "1"}))["tasks"][0]["questions"], 1);
  EXPECT_EQ(json(evaluate({"--task", "piqa", "--limit", "9"}))["tasks"][0]["questions"], 2);
  const Json one = json(evaluate({"--task", "piqa", "--limit", "1"}))["tasks"][0];
  EXPECT_TRUE(one["acc_stderr"].is_null()) << "one question has none";
}

TEST_F(TasksCli, AnotherSplitAndTheTasksOwnFolder) {
  fs::rename(scratch.path() / "wsc/val.jsonl", scratch.path() / "wsc/train.jsonl");
  const Json result = json({"evaluate", "--task", "wsc", "--task-data",
                            (scratch.path() / "wsc").string(), "--split", "train"})["tasks"][0];
  EXPECT_EQ(result["split"], "train");
  EXPECT_EQ(result["questions"], 2);
}

TEST_F(TasksCli, LongQuestionsAreCutAndCounted) {
  std::string goal;
  for (int i = 0; i < 600; ++i) goal += "word ";  // the built-in model's context is 512
  test::write_under(scratch.path(), "piqa/valid.jsonl",
                    Json({{"goal", goal}, {"sol1", "a"}, {"sol2", "b"}}).dump());
  test::write_under(scratch.path(), "piqa/valid-labels.lst", "0\n");
  const ProcessResult result = run(evaluate({"--task", "piqa"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("piqa: 1 question longer than the model's context of 512"));
}

TEST_F(TasksCli, LettersAreAskedInEveryRotation) {
  for (const std::string by : {"likelihood", "generated"}) {
    const Json results = json(evaluate(
        {"--task", "arc_easy", "--task", "logiqa", "--task", "mmlu", "--letters", by}))["tasks"];
    ASSERT_EQ(results.size(), 3u);
    EXPECT_EQ(results[0]["asked"], 5) << "three options and two";
    EXPECT_EQ(results[1]["asked"], 8);
    EXPECT_EQ(results[2]["asked"], 8);
    for (const Json& result : results) {
      EXPECT_EQ(result["questions"], 2);
      EXPECT_FALSE(result.contains("acc_norm"));
    }
  }
  expect_failure(evaluate({"--task", "arc_easy", "--task", "wsc", "--letters", "generated"}), 1,
                 "wsc: has no labelled options to ask for by letters");
  expect_failure(evaluate({"--task", "mmlu", "--letters", "loudly"}), 2, "--letters");
  expect_failure({"evaluate", "--letters", "generated"}, 2, "--task");
}

TEST_F(TasksCli, LastWordsAreSaidOrNot) {
  const std::string file = write("words.jsonl",
                                 "{\"context\": \"The town lies in the north of the\", "
                                 "\"continuation\": \"country\"}\n");
  const Json result = json({"evaluate", "--last-words", file});
  EXPECT_EQ(result["words"], 1);
  EXPECT_TRUE(result["acc"] == 0 || result["acc"] == 1);
  EXPECT_TRUE(result["acc_stderr"].is_null()) << "one word has none";
  EXPECT_THAT(run({"evaluate", "--last-words", file}).out, HasSubstr("perplexity  "));
  const std::string broken =
      write("broken.jsonl", "{\"context\": \"a\", \"continuation\": \"\"}\n");
  expect_failure({"evaluate", "--last-words", broken}, 1,
                 "broken.jsonl:1: \"continuation\" is empty");
  expect_failure({"evaluate", "--last-words", "none.jsonl"}, 1, "none.jsonl");
  expect_failure({"evaluate", "--last-words", file, "--recall"}, 2, "--recall");
  expect_failure({"evaluate", "--last-words", file, "--sequences", "3"}, 2, "--sequences");
}

TEST_F(TasksCli, MistakesAreNamed) {
  expect_failure(evaluate({"--task", "pica"}), 2, "no such task; there are piqa, logiqa, arc_easy");
  expect_failure({"evaluate", "--task", "piqa"}, 2, "--task-data");
  expect_failure({"evaluate", "--task-data", "x"}, 2, "--task");
  expect_failure({"evaluate", "--limit", "3"}, 2, "--task");
  expect_failure(evaluate({"--task", "piqa", "--limit", "0"}), 2, "--limit");
  expect_failure(evaluate({"--task", "piqa", "--data", "a.txt"}), 2, "--data");
  expect_failure(evaluate({"--task", "piqa", "--teacher", "m"}), 2, "--teacher");
  expect_failure(evaluate({"--task", "wsc", "--split", "test"}), 1, "no such split of wsc");
  expect_failure(evaluate({"--task", "wsc", "--split", "train"}), 1, "train.jsonl: missing");
  expect_failure({"evaluate", "--task", "wsc", "--task-data", "none"}, 1, "none: no such folder");
  test::write_under(scratch.path(), "wsc/val.jsonl", "{}\n");
  expect_failure(evaluate({"--task", "piqa", "--task", "wsc"}), 1, "val.jsonl:1: expected");
  expect_failure({"evaluate", (test::fixtures() / "gpt2").string(), "--task", "piqa", "--task-data",
                  scratch.path().string()},
                 1, "tokenizer");
}

}  // namespace
}  // namespace dofla
