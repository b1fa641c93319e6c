// dofla compare as a user meets it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/command_line.h"

namespace dofla {
namespace {

using testing::HasSubstr;
using testing::Not;

class CompareCli : public test::CommandLine {
 protected:
  const std::string teacher = std::string(DOFLA_SOURCE_DIR) + "/tests/models/stories260K";
  const std::string student = (scratch.path() / "student").string();
  const std::string page = (scratch.path() / "page.html").string();

  static std::string sentences(int count, int shift) {
    std::string text;
    for (int i = 0; i < count; ++i)
      text += "Lily saw " + std::to_string((i * i + shift) % 17) + " red birds in the park. ";
    return text;
  }
  std::string text(int shift = 0) const {
    return write("text" + std::to_string(shift) + ".txt", sentences(60, shift));
  }
  void make_student() const {
    const auto made =
        run({"distill", teacher,   "--data",  text(),       "--length", "32",     "--held-out",
             "2",       "--batch", "2",       "--strategy", "fix",      "--cost", "4",
             "--keys",  "12",      "--sinks", "1",          "--recent", "2",      "--block",
             "4",       "--steps", "1",       "--out",      student});
    ASSERT_EQ(made.exit_code, 0) << made.err;
  }
  std::vector<std::string> compare(const std::vector<std::string>& more) const {
    return joined({"compare", teacher, student, "--length", "32", "--windows", "4"}, more);
  }
};

TEST_F(CompareCli, WritesThePageTheMarkdownAndTheJson) {
  make_student();
  const std::string markdown = (scratch.path() / "page.md").string();
  const Json said = json(compare(
      {"--texts", "own=" + text(), "other=" + text(5), "--out", page, "--markdown", markdown}));
  EXPECT_EQ(said["teacher"], teacher);
  ASSERT_EQ(said["students"].size(), 1u);
  const Json& one = said["students"][0];
  EXPECT_EQ(one["path"], student);
  EXPECT_EQ(one["kind"], "hybrid");
  EXPECT_GT(one["bytes"], 0);
  ASSERT_EQ(one["texts"].size(), 2u);
  // It was trained on the first text: that is its domain.
  EXPECT_EQ(one["texts"][0]["name"], "own");
  EXPECT_EQ(one["texts"][0]["in_domain"], true);
  EXPECT_EQ(one["texts"][0]["trained_on"], true);
  EXPECT_EQ(one["texts"][1]["in_domain"], false);
  for (const Json& each : one["texts"]) {
    EXPECT_EQ(each["tokens"], 4 * 31);
    for (const char* field : {"loss", "teacher_loss", "kl", "kl_stderr", "kl_99", "same_top"})
      EXPECT_TRUE(each[field].is_number()) << field;
  }
  // The whole is the mean over tokens, of which both texts have as many.
  EXPECT_NEAR(double{one["all"]["kl"]},
              (double{one["texts"][0]["kl"]} + double{one["texts"][1]["kl"]}) / 2, 1e-9);
  EXPECT_EQ(said["yardsticks"].size(), 2u);
  EXPECT_LT(said["yardsticks"][0]["all"]["kl"], said["yardsticks"][1]["all"]["kl"]);
  EXPECT_EQ(one["cost"]["bytes"][2]["tokens"], 1'000'000);
  EXPECT_EQ(one["cost"]["bytes"][0]["bytes"], one["cost"]["bytes"][2]["bytes"]);
  EXPECT_GE(one["worst"].size(), 8u);  // one in every window of 32 tokens, or two far apart
  EXPECT_LE(one["worst"].size(), 16u);

  const std::string html = read_text(page);
  for (const char* part : {"Can it replace its teacher?", "Where is it lost?", "in domain",
                           "its exact keys alone", "The worst passages"})
    EXPECT_THAT(html, HasSubstr(part));
  EXPECT_THAT(read_text(markdown), HasSubstr("## Verdict"));
}

// What evaluate says of the same windows.
TEST_F(CompareCli, HasTheNumbersOfEvaluate) {
  make_student();
  const std::string some = write("some.txt", sentences(13, 0));
  const Json compared = json(joined({"compare", teacher, student, "--length", "32"},
                                    {"--windows", "3", "--texts", some}))["students"][0];
  const Json evaluated = json({"evaluate", student, "--teacher", teacher, "--data", some,
                               "--length", "32", "--sequences", "3"});
  for (const char* field : {"tokens", "loss", "teacher_loss", "kl", "kl_99", "same_top"})
    EXPECT_EQ(compared["texts"][0][field], evaluated[field]) << field;
  EXPECT_EQ(compared["attention_error"], evaluated["attention_error"]);
  EXPECT_EQ(compared["texts"][0]["name"], "some");
}

TEST_F(CompareCli, ATeacherCanReplaceItself) {
  const fs::path copy = scratch.path() / "copy";
  fs::copy(teacher, copy);
  const Json said = json({"compare", teacher, copy.string(), "--length", "32", "--windows", "3",
                          "--texts", text(), "--in-domain", "text0"});
  const Json& one = said["students"][0];
  EXPECT_EQ(one["kind"], "softmax");
  EXPECT_EQ(one["texts"][0]["grade"], "equal");
  EXPECT_EQ(one["texts"][0]["in_domain"], true);
  for (const char* field :
       {"kl", "kl_stderr", "kl_max", "p_change", "p_change_rms", "entropy_change", "added_stderr"})
    EXPECT_EQ(one["texts"][0][field], 0) << field;
  EXPECT_EQ(one["texts"][0]["same_top"], 1);
  EXPECT_EQ(one["texts"][0]["top5_overlap"], 1);
  EXPECT_EQ(one["texts"][0]["perplexity_ratio"], 1);
  for (const Json& error : one["attention_error"]) EXPECT_EQ(error, 0);
  EXPECT_TRUE(one["worst"].empty());
  EXPECT_EQ(one["verdict"]["grade"], "equal");
}

TEST_F(CompareCli, MistakesAreOneLineAndLeaveNoFile) {
  make_student();
  expect_failure({"compare", teacher}, 2, "STUDENT");
  expect_failure({"compare"}, 2, "TEACHER");
  expect_failure({"compare", teacher, student, student}, 2, "given twice");
  expect_failure({"compare", teacher, student, student + "/"}, 2, "given twice");
  expect_failure({"compare", teacher, (scratch.path() / "none").string()}, 1, "none");
  expect_failure({"compare", (scratch.path() / "none").string(), student}, 1, "none");
  const std::vector<std::string> out = {"--out", page};
  expect_failure(joined(compare({"--texts", (scratch.path() / "no.txt").string()}), out), 1,
                 "no.txt");
  expect_failure(joined(compare({"--texts", "a=" + text(), "a=" + text(5)}), out), 2,
                 "two are called a");
  expect_failure(joined(compare({"--texts", "=" + text()}), out), 2, "NAME=F");
  expect_failure(joined(compare({"--texts", text(), "--in-domain", "x"}), out), 2,
                 "no text has that name");
  expect_failure(joined(compare({"--texts", write("short.txt", "Once upon a time")}), out), 1,
                 "fewer tokens than a window of 32");
  expect_failure(joined(compare({"--texts", write("bytes.txt", "a\xff\xfe b")}), out), 1, "UTF-8");
  expect_failure(joined({"compare", teacher, student, "--length", "100000"}, out), 1, "context");
  expect_failure(joined(compare({"--suite", "some"}), out), 2, "--suite");
  const std::string other = (test::assets() / "wiki-mini").string();
  expect_failure({"compare", teacher, other, "--texts", text(), "--length", "32", "--out", page}, 1,
                 other + ": a vocabulary of");
  expect_failure(compare({"--texts", text(), "--tasks", scratch.path().string()}), 1,
                 "holds no folder of a task");
  EXPECT_FALSE(fs::exists(page));
}

TEST_F(CompareCli, HostileNamesAndTextsStayText) {
  make_student();
  const std::string evil = "<script>alert(1)</script>";
  const std::string file = write("evil.txt", evil + " " + sentences(60, 3) + evil);
  const auto result = run(compare({"--texts", evil + "=" + file, "--out", page}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(read_text(page), Not(HasSubstr("<script>alert")));
}

}  // namespace
}  // namespace dofla
