// --compare of dofla distill and dofla finetune: the page of dofla compare when a student is there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/command_line.h"

namespace dofla {
namespace {

using testing::HasSubstr;

class ComparePageCli : public test::CommandLine {
 protected:
  const std::string teacher = (test::tests_folder() / "models/stories260K").string();
  const std::string student = (scratch.path() / "student").string();
  const std::string page = (scratch.path() / "page.html").string();

  std::string text() const {
    std::string sentences;
    for (int i = 0; i < 60; ++i)
      sentences += "Lily saw " + std::to_string(i * i % 17) + " red birds in the park. ";
    return write("text.txt", sentences);
  }
  std::vector<std::string> short_run(const std::string& command, const std::string& model) const {
    return {command, model, "--data", text(), "--length", "32", "--held-out", "3", "--batch", "2"};
  }
  std::vector<std::string> distill() const {
    return joined(short_run("distill", teacher),
                  {"--strategy", "fix", "--cost", "4", "--steps", "1", "--out", student});
  }

  // The verdict is of the held-out windows, whose numbers the command has itself.
  void expect_page(const Json& said) const {
    const Json &of = said["fidelity"], &finding = said["verdict"]["findings"][0];
    EXPECT_EQ(finding["about"], "held out");
    EXPECT_EQ(finding["words"],
              fmt::format("{:+.3f} nats a token, KL {:.3f}, {:.1f} % of the likeliest tokens the "
                          "same (in domain)",
                          double{of["loss"]} - double{of["teacher_loss"]}, double{of["kl"]},
                          100 * double{of["same_top"]}));
    const std::string html = read_text(page);
    for (const char* part : {"Can it replace its teacher?", "held out", "--compare"})
      EXPECT_THAT(html, HasSubstr(part));
    EXPECT_THAT(html, HasSubstr(finding["words"].get<std::string>()));
  }
};

TEST_F(ComparePageCli, DistillEndsWithIt) {
  const Json said = json(joined(distill(), {"--compare", page}));
  expect_page(said);
  EXPECT_EQ(said["verdict"]["findings"].back()["about"], "memory");
}

TEST_F(ComparePageCli, FinetuneEndsWithIt) {
  ASSERT_EQ(run(distill()).exit_code, 0);
  const std::string tuned = (scratch.path() / "tuned").string();
  const std::vector<std::string> finetune =
      joined(short_run("finetune", student), {"--teacher", teacher, "--epochs", "1"});
  expect_page(json(joined(finetune, {"--out", tuned, "--compare", page})));
  const auto printed = run(joined(finetune, {"--out", tuned + "-2", "--compare", page + "-2"}));
  EXPECT_THAT(printed.out,
              testing::ContainsRegex("\nverdict +(far|apart|close|equal): .*\n +held out: "));
  EXPECT_THAT(printed.err, HasSubstr("open " + page + "-2"));
}

TEST_F(ComparePageCli, WhatCannotBeComparedIsSaidBeforeTheWork) {
  expect_failure(joined(distill(), {"--compare", "/proc/none/page"}), 1, "/proc/none");
  expect_failure(joined(short_run("finetune", teacher), {"--out", student, "--compare", page}), 2,
                 "--teacher");
  const std::string ids = write("ids.json", "[[1, 2, 3, 4], [4, 5, 6, 7], [7, 8, 9, 1]]");
  expect_failure(
      {"distill", fixture, "--ids", ids, "--held-out", "1", "--out", student, "--compare", page}, 1,
      "tokenizer");
  EXPECT_FALSE(fs::exists(student));
  EXPECT_FALSE(fs::exists(page));
}

}  // namespace
}  // namespace dofla
