// dofla compare as a user meets it.
#include <chrono>
#include <csignal>

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

// A person reads the numbers of the JSON.
TEST_F(CompareCli, PrintsWhatItMeasured) {
  make_student();
  const std::vector<std::string> arguments =
      compare({"--texts", "own=" + text(), "other=" + text(5)});
  const Json one = json(arguments)["students"][0];
  const auto printed = run(arguments);
  EXPECT_EQ(printed.exit_code, 0) << printed.err;
  EXPECT_THAT(
      printed.out,
      testing::StartsWith(student + " (hybrid): " + one["verdict"]["headline"].get<std::string>()));
  for (const Json& each : one["texts"]) {
    const double loss = each["teacher_loss"], added = double{each["loss"]} - loss;
    EXPECT_THAT(printed.out,
                testing::ContainsRegex(fmt::format(
                    " {} .* {} +{:.4f} +\\{:+.4f} +{:.4f} +{:.3f} +{:.3f} +{:.1f} %  {}\n",
                    each["name"].get<std::string>(), int64_t{each["tokens"]}, loss, added,
                    double{each["kl"]}, double{each["kl_99"]}, double{each["kl_999"]},
                    100 * double{each["same_top"]}, each["grade"].get<std::string>())));
  }
  for (const Json& finding : one["verdict"]["findings"]) {
    if (!finding["grade"].is_null()) continue;
    EXPECT_THAT(printed.out, HasSubstr("  " + finding["about"].get<std::string>() + ": "));
  }
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
  const fs::path unlike = scratch.path() / "unlike";  // as many tokens, two of them exchanged
  fs::copy(teacher, unlike);
  Json tokenizer = load_json(unlike / "tokenizer.json");
  for (auto& [token, id] : tokenizer["model"]["vocab"].items())
    if (id == 300 || id == 301) id = 601 - id.get<int>();
  write_whole(unlike / "tokenizer.json", tokenizer.dump());
  expect_failure({"compare", teacher, unlike.string(), "--texts", text(), "--out", page}, 1,
                 unlike.string() + ": token 300 is ");
  expect_failure(compare({"--texts", text(), "--tasks", scratch.path().string()}), 1,
                 "holds no folder of a task");
  expect_failure(joined(compare({"--texts", text(), "--last-words", "none.jsonl"}), out), 1,
                 "none.jsonl");
  expect_failure(joined(compare({"--windows", "0"}), out), 2, "--windows");
  EXPECT_FALSE(fs::exists(page));
}

// Refused before the work.
TEST_F(CompareCli, PlacesThatCannotBeWrittenAreRefused) {
  for (const char* option : {"--out", "--markdown"}) {
    expect_failure({"compare", "/nowhere", "/nowhere", option, "/proc/none/page"}, 1,
                   "/proc/none: cannot create");
    expect_failure({"compare", "/nowhere", "/nowhere", option, scratch.path().string()}, 1,
                   "is a folder; expected the name of a file");
  }
  make_student();
  const fs::path deep = scratch.path() / "new/folder/page.html";
  const auto result = run(compare({"--texts", text(), "--out", deep.string()}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(fs::exists(deep));
}

TEST_F(CompareCli, DamagedStudentsAreNamed) {
  make_student();
  const std::string config = read_text(fs::path(student) / "config.json");
  const std::string weights = read_text(fs::path(student) / "model.safetensors");
  const auto expect_damaged = [&](const std::string& part) {
    expect_failure(compare({"--texts", text(), "--out", page}), 1, part);
    EXPECT_FALSE(fs::exists(page));
  };
  write_whole(fs::path(student) / "model.safetensors",
              std::string_view(weights).substr(0, weights.size() / 2));
  expect_damaged(student + "/model.safetensors: ");
  fs::remove(fs::path(student) / "model.safetensors");
  expect_damaged("no weights");
  write_whole(fs::path(student) / "model.safetensors", weights);
  write_whole(fs::path(student) / "config.json", "{");
  expect_damaged(student + "/config.json: ");
  Json bad = parse_json(config, "config");
  bad["linear_attention"]["exact_keys"] = 3;
  write_whole(fs::path(student) / "config.json", bad.dump());
  expect_damaged("exact_keys");
}

TEST_F(CompareCli, AnInterruptLeavesNoPage) {
  const fs::path copy = scratch.path() / "copy";
  fs::copy(teacher, copy);
  // The built-in text is read for seconds; the page's place has been tried by then.
  const auto begun = std::chrono::steady_clock::now();
  const auto ready = [&] {
    return std::chrono::steady_clock::now() - begun > std::chrono::milliseconds(300);
  };
  const auto result = test::run_process(
      {DOFLA_BINARY, "compare", teacher, copy.string(), "--windows", "100000", "--out", page}, {},
      {}, {SIGINT, ready});
  EXPECT_EQ(result.exit_code, 128 + SIGINT) << result.err;
  for (const auto& entry : fs::directory_iterator(scratch.path())) EXPECT_EQ(entry.path(), copy);
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
