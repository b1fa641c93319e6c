// dofla evaluate --recall as a user meets it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/command_line.h"

namespace dofla {
namespace {

using test::ProcessResult;
using testing::HasSubstr;

class RecallCli : public test::CommandLine {
 protected:
  static std::vector<std::string> recall(const std::vector<std::string>& more) {
    return joined({"evaluate", "--recall"}, more);
  }
  const std::string wiki_mini = (test::assets() / "wiki-mini").string();
};

TEST_F(RecallCli, HasRowsForEveryDistanceThatFits) {
  const ProcessResult result =
      run(recall({"--distances", "300,24,300,512", "--questions", "3", "--json"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err,
              HasSubstr("recall left out at 512 tokens: longer than the context of 512\n"));
  EXPECT_THAT(result.err, HasSubstr("induction left out at 300, 512 tokens: longer than"));
  const Json report = parse_json(result.out, "stdout");
  ASSERT_EQ(report["recall"].size(), 2u);
  EXPECT_EQ(report["recall"][0]["distance"], 24);
  EXPECT_EQ(report["recall"][1]["distance"], 300);
  for (const Json& row : report["recall"]) {
    EXPECT_EQ(row["questions"], 3);
    EXPECT_EQ(row["chance"], 0.2);
    EXPECT_LE(int64_t{row["exact"]} + int64_t{row["confused"]}, 3);
    EXPECT_FALSE(row.contains("teacher_exact"));
  }
  ASSERT_EQ(report["needle"].size(), 6u) << "two lengths, three depths";
  EXPECT_EQ(report["needle"][0]["length"], 24 + 128);
  EXPECT_EQ(report["needle"][4]["depth"], 0.5);
  ASSERT_EQ(report["induction"].size(), 1u);
  EXPECT_EQ(report["induction"][0]["distance"], 24);
}

TEST_F(RecallCli, ATeacherStandsBesideAndIsAskedTheSame) {
  const std::vector<std::string> command =
      recall({"--distances", "16", "--questions", "12", "--teacher", wiki_mini, "--depths", "1,1"});
  const Json report = json(command), recall = report["recall"][0];
  EXPECT_EQ(recall["teacher_exact"], recall["exact"]);
  EXPECT_EQ(recall["teacher_confused"], recall["confused"]);
  ASSERT_EQ(report["needle"].size(), 1u);
  EXPECT_EQ(report["needle"][0]["teacher_exact"], report["needle"][0]["exact"]);
  EXPECT_EQ(report["induction"][0]["teacher_accuracy"], report["induction"][0]["accuracy"]);
  EXPECT_GT(double{report["induction"][0]["accuracy"]}, 0);

  // The table says the same in percent.
  const ProcessResult table = run(command);
  EXPECT_EQ(std::count(table.out.begin(), table.out.end(), '\n'), 7);
  const std::string row = fmt::format(
      "{:>9}  {:>5.1f} %  {:>6.1f} %    20 %  {:>7.1f} %\n", 12, 100 * double{recall["exact"]} / 12,
      100 * double{recall["confused"]} / 12, 100 * double{report["induction"][0]["accuracy"]});
  EXPECT_THAT(table.out, HasSubstr("\n      16  this     " + row + "      16  teacher  " + row));
  const std::string needle = fmt::format("{:>9}  {:>5.1f} %  0.01 %\n", 12,
                                         100 * double{report["needle"][0]["exact"]} / 12);
  EXPECT_THAT(table.out, HasSubstr("\n      144      1  this     " + needle +
                                   "      144      1  teacher  " + needle));
}

// What a cache alone still finds: with keys for all tokens what the teacher does, with a few
// nothing that is farther back.
TEST_F(RecallCli, ASoftmaxModelMayBeCutToACache) {
  const auto found = [&](const std::vector<std::string>& keys) {
    return double{json(joined(recall({"--distances", "64", "--questions", "2"}),
                              keys))["induction"][0]["accuracy"]};
  };
  const double teacher = found({});
  EXPECT_GT(teacher, 0.02);
  EXPECT_EQ(found({"--keys", "512"}), teacher);
  EXPECT_LT(found({"--window", "24"}), 0.5 * teacher);
  const fs::path student = scratch.path() / "student";
  ASSERT_EQ(
      run({"distill", "--steps", "0", "--strategy", "fix", "--cost", "2", "--window", "24",
           "--length", "48", "--sequences", "4", "--held-out", "1", "--out", student.string()})
          .exit_code,
      0);
  expect_failure(recall({student.string(), "--keys", "64"}), 1,
                 "exact keys alone are for a softmax");
}

TEST_F(RecallCli, ASeedGivesTheSameAgain) {
  const std::vector<std::string> command =
      recall({"--distances", "16", "--questions", "3", "--seed", "5"});
  EXPECT_EQ(json(command), json(command));
}

TEST_F(RecallCli, MistakesAreNamed) {
  expect_failure(recall({"--distances", "0"}), 2, "--distances: expected a whole number from 1");
  expect_failure(recall({"--distances", "128,-1"}), 2, "--distances");
  expect_failure(recall({"--questions", "0"}), 2, "--questions");
  expect_failure(recall({"--depths", "0,1.1"}), 2, "--depths");
  expect_failure(recall({"--depths", "nan"}), 2, "--depths");
  expect_failure({"evaluate", "--depths", "1"}, 2, "--recall");
  expect_failure({"evaluate", "--distances", "128"}, 2, "--recall");
  expect_failure({"evaluate", "--seed", "1"}, 2, "--recall");
  expect_failure(recall({"--sequences", "3"}), 2, "--sequences");
  expect_failure(recall({"--distances", "600"}), 1, "the longest that does is 379");
  const std::string little = write("little.txt", "A cat sat on a mat and looked at a dog.");
  expect_failure(recall({"--distances", "128", "--data", little}), 1, "give a longer text");
  std::string some;
  for (int i = 0; i < 60; ++i) some += "A cat sat on a mat and looked at a dog. ";
  const std::string longer = write("longer.txt", some);
  expect_failure(recall({"--distances", "128", "--questions", "9", "--data", longer}), 1,
                 "with a distance of 128, not for 9: ask fewer or give a longer text");
  expect_failure(recall({fixture}), 1, "tokenizer");
  expect_failure(recall({"--distances", "16", "--teacher", fixture}), 1,
                 "the tokens of its teacher");
}

}  // namespace
}  // namespace dofla
