// Students with exact keys beside their features, in every command that takes a student.
#include <csignal>

#include "dofla/linear/linear_model.h"
#include "tests/support/distill_command.h"
#include "tests/support/random_values.h"
#include "tests/support/task_files.h"

namespace dofla {
namespace {

using testing::HasSubstr;

class HybridCli : public test::DistillCommand {
 protected:
  // 8 keys, of windows of 24 tokens.
  std::vector<std::string> hybrid(const std::vector<std::string>& more = {}) {
    return joined(distill({"--keys", "8", "--sinks", "1", "--recent", "2", "--block", "4"}), more);
  }
  static std::vector<std::string> names(const Json& controls) {
    std::vector<std::string> all;
    for (const Json& control : controls) all.push_back(control["name"]);
    return all;
  }
};

TEST_F(HybridCli, IsDistilledInspectedComparedAndTrainedFurther) {
  const Json result = json(hybrid({"--out", out, "--steps", "3"}));
  EXPECT_EQ(names(result["controls"]), (std::vector<std::string>{"exact-keys", "features"}));
  EXPECT_THAT(read_text(out + "/report.html"), HasSubstr("its exact keys alone"));
  EXPECT_THAT(read_text(out + "/report.html"), HasSubstr("24 are the least"));

  EXPECT_THAT(run({"inspect", out}).out, HasSubstr("8 exact keys (attended, 1 sinks)"));
  const Json keys = json({"inspect", out})["linear_attention"]["exact_keys"];
  EXPECT_EQ(keys[2]["keys"], 8);
  const Json compared = json({"evaluate", out, "--teacher", model, "--ids", ids()});
  for (const Json& control : compared["controls"]) {
    EXPECT_TRUE(control["loss"].is_number());
    EXPECT_LT(control["state_bytes"], result["state_bytes"]);
  }
  EXPECT_EQ(names(compared["controls"]), names(result["controls"]));
  const std::string table = run({"evaluate", out, "--teacher", model, "--ids", ids()}).out;
  for (const char* part : {"the student", "its exact keys alone", "its features alone",
                           "left out: a window or a cache alone"})
    EXPECT_THAT(table, HasSubstr(part));

  const auto settings = [](const std::string& folder) {
    return load_json(fs::path(folder) / "config.json")["linear_attention"];
  };
  EXPECT_EQ(settings(out)["loss"], "output");
  EXPECT_FALSE(settings(out).contains("mask"));
  EXPECT_EQ(settings(out)["calibration_windows"], 16);
  json(bare({"--start", out, "--loss", "kl", "--steps", "2", "--out", out + "-on"}));
  EXPECT_FALSE(settings(out + "-on").contains("calibration_windows"));
  EXPECT_EQ(json({"inspect", out + "-on"})["linear_attention"]["exact_keys"], keys);
  json({"finetune", out, "--teacher", model, "--ids", ids(), "--held-out", "2", "--epochs", "1",
        "--batch", "2", "--out", out + "-tuned"});
  EXPECT_EQ(json({"inspect", out + "-tuned"})["linear_attention"]["exact_keys"], keys);
  EXPECT_EQ(
      names(json({"evaluate", out + "-tuned", "--teacher", model, "--ids", ids()})["controls"]),
      names(result["controls"]));
}

// The teacher alone in the same memory, of a linear student too.
TEST_F(HybridCli, RivalsAreShownWhereTheMemoryIsLargeEnough) {
  const Json result =
      json(bare({"--cost", "32", "--strategy", "fix", "--steps", "1", "--out", out}));
  EXPECT_EQ(names(result["controls"]), (std::vector<std::string>{"window", "cache"}));
  for (const Json& control : result["controls"])
    EXPECT_LE(control["state_bytes"], result["state_bytes"]);
  EXPECT_THAT(run({"evaluate", out, "--teacher", model, "--ids", ids()}).out,
              HasSubstr("a window of "));
  EXPECT_EQ(json({"evaluate", model, "--teacher", model, "--ids", ids()})["controls"],
            Json::array());
}

TEST_F(HybridCli, GeneratesTheSameAloneAndAfterALongPrompt) {
  json(hybrid({"--out", out, "--steps", "1", "--keep", "2"}));
  EXPECT_THAT(run({"inspect", out}).out, HasSubstr("layer 2     softmax attention"));
  const auto ids_after = [&](const Json& prompt, int count) {
    return json({"generate", out, "--ids", write("prompt.json", Json::array({prompt}).dump()),
                 "--max-tokens", std::to_string(count), "--temperature", "0",
                 "--ignore-end"})["ids"];
  };
  Json prompt = {1, 2, 3, 4, 5};
  const Json twelve = ids_after(prompt, 12);
  ASSERT_EQ(twelve.size(), 12u);
  for (size_t i = 0; i < 7; ++i) prompt.push_back(twelve[i]);
  const Json rest = ids_after(prompt, 5);
  EXPECT_EQ(rest, Json(std::vector<Json>(twelve.begin() + 7, twelve.end())));
}

TEST_F(HybridCli, AnswersTasks) {
  const std::string stories = std::string(DOFLA_SOURCE_DIR) + "/tests/models/stories260K";
  test::write_task_files(scratch.path());
  json({"distill",    stories, "--ids",   ids(), "--held-out", "2", "--batch", "2",
        "--strategy", "fix",   "--cost",  "4",   "--window",   "8", "--sinks", "0",
        "--recent",   "1",     "--block", "4",   "--steps",    "1", "--out",   out});
  const Json task =
      json({"evaluate", out, "--task", "piqa", "--task-data", scratch.path().string()})["tasks"][0];
  EXPECT_EQ(task["questions"], 2);
  EXPECT_EQ(task["not_finite"], 0);
}

TEST_F(HybridCli, StoppedByASignalAndResumedEndsInTheSameBytes) {
  expect_resume_after_a_signal(hybrid({"--steps", "200", "--checkpoint-every", "1"}), out, SIGINT);
}

TEST_F(HybridCli, BadInputIsOneLine) {
  expect_failure(distill({"--out", out, "--keys", "0"}), 2, "--keys");
  expect_failure(distill({"--out", out, "--keys", "-3"}), 2, "--keys");
  expect_failure(distill({"--out", out, "--keys", "8"}), 2, "too few");
  expect_failure(distill({"--out", out, "--sinks", "2"}), 2, "give --keys");
  expect_failure(hybrid({"--out", out, "--policy", "oldest"}), 2, "oldest");
  expect_failure(hybrid({"--out", out, "--window", "9"}), 2, "excludes");
  expect_failure(hybrid({"--out", out, "--keep", "4"}), 1, "layer 4");
  expect_failure(hybrid({"--out", out, "--keep", "1,2,3"}), 1, "keep fewer layers");
  json(hybrid({"--out", out, "--steps", "0"}));
  Json config = load_json(out + "/config.json");
  config["linear_attention"]["exact_keys"][1].erase("sinks");
  write_whole(out + "/config.json", config.dump());
  expect_failure({"inspect", out}, 1, "exact_keys: layer 2: sinks: missing");
  expect_failure({"evaluate", out, "--teacher", model, "--ids", ids()}, 1, "sinks: missing");
}

}  // namespace
}  // namespace dofla
