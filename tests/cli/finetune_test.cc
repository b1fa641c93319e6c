// dofla finetune as a user meets it, on a tiny model.
#include <csignal>
#include <sstream>

#include "dofla/core/file.h"
#include "tests/support/command_line.h"
#include "tests/support/fixtures.h"
#include "tests/support/task_files.h"

namespace dofla {
namespace {

using test::ProcessResult;
using testing::HasSubstr;

class FinetuneCli : public test::CommandLine {
 protected:
  FinetuneCli() {
    test::write_task_files(data);
    std::string questions, labels;
    for (int i = 0; i < 7; ++i) {
      questions += fmt::format(
          R"({{"goal": "find {0} cats", "sol1": "look for {0} cats", "sol2": "run {0} times"}})",
          i);
      questions += "\n";
      labels += i % 3 == 0 ? "1\n" : "0\n";
    }
    test::write_under(data, "piqa/train.jsonl", questions);
    test::write_under(data, "piqa/train-labels.lst", labels);
  }

  std::vector<std::string> finetune(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all = {"finetune", model, "--task",      "piqa",
                                    "--batch",  "2",   "--task-data", data.string()};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  const fs::path data = scratch.path() / "tasks";
  const std::string model = std::string(DOFLA_SOURCE_DIR) + "/tests/models/stories260K";
  const std::string out = (scratch.path() / "tuned").string();
};

TEST_F(FinetuneCli, MakesACompleteModelFolder) {
  const Json result = json(finetune({"--out", out, "--lr", "1e-3"}));
  EXPECT_EQ(result["task"], "piqa");
  EXPECT_EQ(result["train_questions"], 7);
  EXPECT_EQ(result["steps"], 12);
  EXPECT_EQ(result["skipped_steps"], 0);
  EXPECT_EQ(result["before"]["questions"], 2);
  ASSERT_EQ(result["epochs"].size(), 3u);
  EXPECT_GT(result["epochs"][0]["loss"], result["epochs"][2]["loss"]);
  const auto kept = result["kept"].get<size_t>();  // 0 stands for the beginning
  EXPECT_FALSE(fs::exists(out + ".training"));

  // The model in the folder is the one that was judged.
  const Json again =
      json({"evaluate", out, "--task", "piqa", "--task-data", data.string()})["tasks"][0];
  EXPECT_EQ(again["acc"], (kept == 0 ? result["before"] : result["epochs"][kept - 1])["acc"]);
  EXPECT_EQ(json({"inspect", out})["model_type"], "llama");
  EXPECT_EQ(run({"generate", out, "--prompt", "Once", "--max-tokens", "2"}).exit_code, 0);
  const Json about = load_json(fs::path(out) / "config.json")["training"];
  EXPECT_EQ(about["task"], "piqa");
  EXPECT_EQ(about["lr"], 1e-3);
  EXPECT_THAT(about["command"].get<std::string>(), testing::StartsWith("dofla finetune "));
  EXPECT_EQ(about["data"], Json::array({data.string()}));
  expect_failure(finetune({"--out", out}), 1, "exists already");
}

// A hybrid student is close to its teacher already: its matrices learn slower, its features do not.
TEST_F(FinetuneCli, StudentsWithExactKeysTakeSmallerStepsOfTheirMatrices) {
  struct Case {
    std::vector<std::string> student, how;
    double rate, feature_rate;
  };
  const std::vector<std::string> keys = {"--keys", "24"}, lora = {"--lora", "2"},
                                 given = {"--lr", "2e-4"};
  for (const Case& one : {Case{keys, {}, 5e-3 / 64, 51.2}, Case{{}, {}, 2e-4, 20},
                          Case{keys, lora, 2e-4, 20}, Case{keys, given, 2e-4, 20}}) {
    fs::remove_all(scratch.path() / "student");
    fs::remove_all(out);
    const std::string student = (scratch.path() / "student").string();
    std::vector<std::string> distill = {
        "distill",     model, "--cost",     "4", "--strategy", "fix",
        "--steps",     "1",   "--batch",    "1", "--length",   "32",
        "--sequences", "4",   "--held-out", "1", "--out",      student};
    distill.insert(distill.end(), one.student.begin(), one.student.end());
    ASSERT_EQ(run(distill).exit_code, 0);
    std::vector<std::string> finetune = {
        "finetune", student,      "--teacher", model,      "--length", "32",    "--sequences",
        "4",        "--held-out", "1",         "--epochs", "1",        "--out", out};
    finetune.insert(finetune.end(), one.how.begin(), one.how.end());
    const ProcessResult result = run(finetune);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const Json about = load_json(fs::path(out) / "config.json")["training"];
    EXPECT_DOUBLE_EQ(about["lr"], one.rate);
    EXPECT_DOUBLE_EQ(about["feature_rate"], one.feature_rate);
  }
}

TEST_F(FinetuneCli, TakesALinearModelAndPrintsATable) {
  const std::string student = (scratch.path() / "student").string();
  ASSERT_EQ(run({"distill", model, "--cost", "6", "--strategy", "fix", "--steps", "2", "--batch",
                 "2", "--length", "32", "--sequences", "8", "--held-out", "2", "--out", student})
                .exit_code,
            0);
  const ProcessResult result =
      run({"finetune", student, "--task", "piqa", "--task-data", data.string(), "--out", out,
           "--limit", "4", "--evaluate-limit", "1", "--epochs", "2", "--recompute"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("piqa: 4 questions of train, 2 steps of 128, learning rate "
                                    "0.0001; accuracy on 1 question of validation\n"));
  EXPECT_THAT(result.out, HasSubstr("\nbefore "));
  EXPECT_THAT(result.out, HasSubstr("\n1 kept "));
  EXPECT_THAT(result.out, HasSubstr("\n2 "));
  EXPECT_EQ(json({"inspect", out})["linear_attention"]["feature_map"], "untied");
}

TEST_F(FinetuneCli, KeepsTheBeginningIfEveryEpochIsWorse) {
  const ProcessResult result =
      run({"finetune", model, "--length", "32", "--sequences", "12", "--held-out", "4", "--epochs",
           "1", "--lr", "0.03", "--out", out});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err,
              HasSubstr("every epoch is worse than the model was before: it is kept as it was"));
  EXPECT_THAT(result.err, HasSubstr(out + ": the model as it was before training"));
  const auto loss_of = [&](const std::string& folder) {
    return json({"evaluate", folder, "--length", "32", "--sequences", "4"})["loss"];
  };
  EXPECT_EQ(loss_of(out), loss_of(model));
}

TEST_F(FinetuneCli, LearnsFromText) {
  const std::vector<std::string> on_text = {
      "finetune", model, "--length", "32", "--sequences", "24", "--held-out", "4", "--epochs", "2"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), on_text.begin(), on_text.end());
    return more;
  };
  const Json result = json(with({"--out", out, "--lr", "1e-3"}));
  EXPECT_EQ(result["train_windows"], 20);
  EXPECT_EQ(result["held_out_windows"], 4);
  EXPECT_EQ(result["steps"], 6);  // of 8, 8 and 4 windows, twice
  ASSERT_EQ(result["epochs"].size(), 2u);
  EXPECT_LT(result["epochs"][1]["held_out_loss"], result["before"]["held_out_loss"]);
  EXPECT_EQ(load_json(fs::path(out) / "config.json")["training"]["windows"], 20);
  EXPECT_FALSE(fs::exists(out + ".training"));

  const ProcessResult table = run(with({"--out", out + "-again", "--lr", "1e-3"}));
  EXPECT_THAT(table.out, HasSubstr("20 windows of 32 tokens, 6 steps of 8, learning rate 0.001; "
                                   "judged by 4 windows\n"));
  EXPECT_THAT(table.out, HasSubstr("\n2 kept "));
  EXPECT_EQ(read_text(fs::path(out) / "model.safetensors"),
            read_text(fs::path(out + "-again") / "model.safetensors"));

  // A model is its own best teacher.
  const Json imitated = json(with({"--out", out + "-same", "--teacher", model, "--lr", "0"}));
  EXPECT_LT(imitated["epochs"][0]["loss"], 1e-4);
  EXPECT_GT(result["epochs"][0]["loss"], 1);
  expect_failure(with({"--out", out + "-no", "--teacher", (test::fixtures() / "gpt2").string()}), 1,
                 "a vocabulary of");
  expect_failure(with({"--out", out + "-no", "--task", "piqa", "--task-data", "x"}), 2, "--task");
  expect_failure({"finetune", model, "--limit", "4", "--out", out + "-no"}, 2, "--task");
  expect_failure(with({"--out", out + "-no", "--train", "features"}), 1, "no features to train");
  expect_failure(with({"--out", out + "-no", "--lora", "1000"}), 1, "rank 1000");
  expect_failure(with({"--out", out + "-no", "--lora", "0"}), 2, "--lora");
  const std::string file = (scratch.path() / "teacher").string();
  ASSERT_EQ(run({"teach", model, "--length", "32", "--sequences", "24", "--out", file}).exit_code,
            0);
  const Json taught = json(with({"--out", out + "-taught", "--taught", file, "--lr", "0"}));
  EXPECT_LT(taught["epochs"][0]["loss"], 1e-4);
  expect_failure(with({"--out", out + "-no", "--taught", file, "--teacher", model}), 2, "--taught");
  expect_failure({"finetune", model, "--length", "16", "--taught", file, "--out", out + "-no"}, 1,
                 "windows of 32 tokens, not of 16");
  for (const char* part : {"features", "all"})
    expect_failure(with({"--out", out + "-no", "--lora", "2", "--train", part}), 2,
                   "--lora is of the matrices of attention");
}

TEST_F(FinetuneCli, KilledAndResumedEndsInTheSameBytes) {
  expect_resume_after_a_kill(finetune({"--epochs", "5", "--checkpoint-every", "1"}), out,
                             {"--lr", "0.5"}, "lr 0.0001, not 0.5");
}

// On questions right at the beginning, while the model is judged for the first time; on text in the
// middle of an epoch.
TEST_F(FinetuneCli, StoppedByASignalAndResumedEndsInTheSameBytes) {
  expect_resume_after_a_signal(finetune({"--epochs", "40", "--checkpoint-every", "1"}), out, SIGHUP,
                               1);
  expect_resume_after_a_signal({"finetune", model, "--length", "32", "--sequences", "200",
                                "--held-out", "4", "--epochs", "2", "--checkpoint-every", "1"},
                               out + "-text", SIGTERM, 3);
}

TEST_F(FinetuneCli, ACheckpointIsAlsoWrittenByTime) {
  const std::vector<std::string> command =
      finetune({"--epochs", "100000", "--checkpoint-every", "100000000", "--checkpoint-minutes",
                "0.001", "--out", out});
  fs::file_time_type first;
  const auto replaced = [&] {
    std::error_code missing;
    const fs::file_time_type written = fs::last_write_time(out + ".training", missing);
    if (missing) return false;
    if (first == fs::file_time_type()) first = written;
    return written != first;
  };
  EXPECT_EQ(
      test::run_process(joined({DOFLA_BINARY}, command), {}, {}, {SIGKILL, replaced}).exit_code,
      -SIGKILL);
}

TEST_F(FinetuneCli, LogsEveryStepOnceAlsoAfterAResume) {
  const std::string log = (scratch.path() / "run.jsonl").string();
  const std::vector<std::string> command =
      finetune({"--epochs", "30", "--checkpoint-every", "1", "--out", out, "--log", log});
  test::run_process(joined({DOFLA_BINARY}, command), {}, {},
                    {SIGINT, [&] { return fs::exists(log); }});
  const Json result = json(joined(command, {"--resume"}));
  EXPECT_EQ(result["steps"], 120);
  std::istringstream text(read_text(log));
  int64_t step = 0;
  double sum = 0, seconds = 0;
  for (std::string line; std::getline(text, line); seconds = parse_json(line, log)["seconds"]) {
    const Json row = parse_json(line, log);
    EXPECT_EQ(row["step"], ++step);
    EXPECT_GT(row["tokens_per_second"], 0);
    EXPECT_GT(row["seconds"], seconds);
    if (step > 116) sum += row["loss"].get<double>();
  }
  EXPECT_EQ(step, 120);
  EXPECT_NEAR(sum / 4, result["epochs"][29]["loss"].get<double>(), 1e-12);
}

TEST_F(FinetuneCli, HelpShowsThePapersSettingsAndTheDevices) {
  const ProcessResult help = run({"finetune", "--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.out, HasSubstr("winogrande     5e-04     128        3  best\n"));
  EXPECT_THAT(help.out, HasSubstr("mmlu           1e-06      64        1  last\n"));
  EXPECT_THAT(help.out, HasSubstr("--device NAME:{cpu,cuda,auto} = auto"));
}

TEST_F(FinetuneCli, LongQuestionsAreCutAndCounted) {
  std::string goal;
  for (int i = 0; i < 600; ++i) goal += "cat ";  // the model's context is 512
  test::write_under(data, "piqa/train.jsonl",
                    Json({{"goal", goal}, {"sol1", "a"}, {"sol2", "b"}}).dump());
  test::write_under(data, "piqa/train-labels.lst", "0\n");
  const ProcessResult result = run(finetune({"--out", out, "--epochs", "1"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("piqa, train: 1 question longer than the model's context"));
}

TEST_F(FinetuneCli, BadInputIsOneLine) {
  expect_failure(finetune({}), 2, "--out");
  expect_failure({"finetune", "--task", "pica", "--task-data", "x", "--out", out}, 2,
                 "no such task; there are piqa");
  expect_failure({"finetune", "--task", "piqa", "--out", out}, 2, "--task-data");
  expect_failure(finetune({"--out", out, "--lr", "-1"}), 2, "--lr");
  expect_failure(finetune({"--out", out, "--epochs", "0"}), 2, "--epochs");
  expect_failure(finetune({"--out", out, "--resume"}), 1, "nothing to resume");
  expect_failure(finetune({"--out", "/dev/null/such"}), 1, "/dev/null");
  expect_failure({"finetune", model, "--task", "wsc", "--task-data", data.string(), "--out", out},
                 1, "train.jsonl: missing; the train questions of wsc");
  expect_failure(finetune({"--out", out, "--epochs", "9", "--lr", "30", "--clip", "0"}), 1,
                 "lower learning rate");
  fs::remove(out + ".training");
  test::write_under(data, "piqa/train-labels.lst", "0\n0\n0\n0\n2\n0\n0\n");
  expect_failure(finetune({"--out", out}), 1, "train-labels.lst:5: expected");
  expect_failure({"finetune", (test::fixtures() / "gpt2").string(), "--task", "logiqa",
                  "--task-data", data.string(), "--out", out},
                 1, "Train.txt: missing");
  EXPECT_FALSE(fs::exists(out));
}

}  // namespace
}  // namespace dofla
