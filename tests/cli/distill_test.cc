// dofla distill as a user meets it, on a tiny model and token ids.
#include <algorithm>
#include <csignal>
#include <sstream>

#include <fmt/ranges.h>

#include "dofla/core/file.h"
#include "dofla/linear/linear_model.h"
#include "tests/support/distill_command.h"
#include "tests/support/random_values.h"

namespace dofla {
namespace {

using test::ProcessResult;
using testing::HasSubstr;

using DistillCli = test::DistillCommand;

// Of a log of distill: all but tokens a second and seconds.
std::vector<std::string> lines_without_times(const std::string& csv) {
  std::vector<std::string> lines;
  std::istringstream text(read_text(csv));
  for (std::string line; std::getline(text, line);) {
    std::vector<std::string> cells;
    std::istringstream row(line);
    for (std::string cell; std::getline(row, cell, ',');) cells.push_back(cell);
    cells.erase(cells.begin() + 4, cells.begin() + 6);
    lines.push_back(fmt::format("{}", fmt::join(cells, ",")));
  }
  return lines;
}

TEST_F(DistillCli, MakesACompleteModelFolder) {
  const Json result = json(distill({"--out", out, "--steps", "5"}));
  for (const char* field : {"teacher_loss", "student_loss", "kl", "same_top", "dims", "steps",
                            "skipped_steps", "seconds", "tokens_per_second"})
    EXPECT_TRUE(result.contains(field)) << field;
  EXPECT_EQ(result["steps"], 5);
  const Json info = json({"inspect", out});
  const auto layers = info["layers"].get<size_t>();
  EXPECT_EQ(result["dims"], Json(std::vector<int64_t>(layers, 6)));
  for (const char* file : {"model.safetensors", "config.json", "plan.json", "report.html"})
    EXPECT_TRUE(fs::exists(fs::path(out) / file)) << file;
  EXPECT_FALSE(fs::exists(out + ".training"));

  const Json about = load_json(fs::path(out) / "config.json")["linear_attention"];
  EXPECT_THAT(about["command"].get<std::string>(), testing::StartsWith("dofla distill " + model));
  EXPECT_EQ(about["data"], Json::array({ids()}));
  const std::string page = read_text(fs::path(out) / "report.html");
  EXPECT_THAT(page, HasSubstr(about["command"].get<std::string>()));
  EXPECT_THAT(page, HasSubstr("ids.json&quot;]"));
  EXPECT_THAT(page, HasSubstr("the entropy of the teacher"));

  EXPECT_EQ(info["model_type"], "gpt2");
  EXPECT_EQ(info["linear_attention"]["feature_map"], "untied");
  const Json compared = json({"evaluate", out, "--teacher", model, "--ids", ids()});
  EXPECT_GT(compared["kl"], 0);
  EXPECT_EQ(compared["attention_error"].size(), layers);
  expect_failure(distill({"--out", out, "--steps", "5"}), 1, "exists already");
  expect_failure({"distill", out, "--ids", ids(), "--out", out + "2"}, 1, "linear-attention model");
}

// null in a plan keeps a layer's softmax attention: in training, in the folder, and in every
// command that takes it.
TEST_F(DistillCli, APlanCanKeepSoftmaxLayers) {
  const std::string plan = (scratch.path() / "plan.json").string();
  json(distill({"--out", out + "1", "--steps", "1"}));
  Json edited = load_json(out + "1/plan.json");
  edited["dims"][0] = nullptr;
  write_whole(plan, edited.dump());
  const Json result = json({"distill", model, "--ids", ids(), "--plan", plan, "--batch", "2",
                            "--held-out", "2", "--steps", "2", "--out", out});
  EXPECT_EQ(result["dims"][0], 0);
  EXPECT_EQ(result["dims"][1], 6);
  EXPECT_TRUE(load_json(out + "/config.json")["linear_attention"]["features"][0].is_null());
  EXPECT_TRUE(load_json(out + "/plan.json")["dims"][0].is_null());
  EXPECT_THAT(run({"inspect", out}).out, HasSubstr("layer 1     softmax attention"));
  const Json compared = json({"evaluate", out, "--teacher", model, "--ids", ids()});
  EXPECT_EQ(compared["attention_error"][0], 0);
  EXPECT_GT(compared["attention_error"][1], 0);
}

TEST_F(DistillCli, EveryStrategyFeatureMapAndStartRuns) {
  int64_t run_number = 0;
  const auto works = [&](const std::vector<std::string>& more) {
    const Json result =
        json(joined(bare({"--cost", "6", "--out", out + std::to_string(run_number++)}), more));
    EXPECT_TRUE(result["student_loss"].is_number()) << result.dump();
  };
  works({"--strategy", "fix", "--steps", "2"});
  for (const char* strategy : {"dof", "dof-clip", "dof-head"})
    works({"--strategy", strategy, "--samples", "32", "--steps", "2"});
  works({"--strategy", "fix", "--init", "leverage", "--samples", "32", "--steps", "2"});
  for (const char* init : {"iid", "orthogonal", "pairs"})
    works({"--strategy", "fix", "--init", init, "--steps", "2"});
  works({"--strategy", "fix", "--features", "performer"});
  works({"--strategy", "fix", "--features", "dijiang", "--steps", "2"});
  for (const char* loss : {"softmax", "l2", "attention-mse", "output", "direct"})
    works({"--strategy", "fix", "--loss", loss, "--steps", "2"});
  works({"--strategy", "fix", "--loss", "direct", "--recompute", "--steps", "2"});
}

TEST_F(DistillCli, GoesOnFromAStudent) {
  const std::string first = out + "-first";
  json(distill({"--out", first, "--steps", "3"}));
  const auto on = [&](const std::string& to, const std::vector<std::string>& more) {
    return joined(bare({"--start", first, "--out", to}), more);
  };
  const auto features = [](const std::string& folder) {
    return to_tensors(load_features(Checkpoint(folder)));
  };
  const auto same = [&](const std::string& folder) {
    const NamedTensors a = features(first), b = features(folder);
    return std::ranges::equal(a, b, [](const auto& x, const auto& y) {
      return x.first == y.first && test::same_bits(x.second, y.second);
    });
  };
  json(on(out + "-untouched", {"--steps", "0"}));
  EXPECT_TRUE(same(out + "-untouched"));
  json(on(out, {"--loss", "direct", "--steps", "2"}));
  EXPECT_FALSE(same(out));
  EXPECT_EQ(json({"inspect", out})["linear_attention"]["features"],
            json({"inspect", first})["linear_attention"]["features"]);
  expect_failure(on(out + "2", {"--plan", first + "/plan.json"}), 2, "excludes");
  expect_failure(bare({"--start", model, "--out", out + "2"}), 1, "not a linear-attention model");
}

TEST_F(DistillCli, KilledAndResumedEndsInTheSameBytes) {
  expect_resume_after_a_kill(distill({"--steps", "300", "--checkpoint-every", "1"}), out,
                             {"--lr-z", "0.5"}, "lr_z");
}

TEST_F(DistillCli, StoppedByASignalAndResumedEndsInTheSameBytes) {
  expect_resume_after_a_signal(distill({"--steps", "300", "--checkpoint-every", "1"}), out, SIGINT);
}

TEST_F(DistillCli, ACheckpointIsAlsoWrittenByTime) {
  const std::vector<std::string> command = distill(
      {"--steps", "100000", "--checkpoint-every", "100000", "--checkpoint-minutes", "0.001"});
  const ProcessResult stopped =
      test::run_process(joined({DOFLA_BINARY}, joined(command, {"--out", out})), {}, {},
                        {SIGKILL, [&] { return fs::exists(out + ".training"); }});
  EXPECT_EQ(stopped.exit_code, -SIGKILL);
}

// Steps, losses and rates are those of a run that nobody disturbed; only the times differ.
TEST_F(DistillCli, LogsEveryStepOnceAlsoAfterAResume) {
  const std::string whole = (scratch.path() / "whole.csv").string();
  const std::string cut = (scratch.path() / "cut.csv").string();
  const std::vector<std::string> command = distill({"--steps", "120", "--checkpoint-every", "7"});
  ASSERT_EQ(run(joined(command, {"--out", out + "-whole", "--log", whole})).exit_code, 0);
  const std::vector<std::string> again = joined(command, {"--out", out, "--log", cut});
  test::run_process(joined({DOFLA_BINARY}, again), {}, {},
                    {SIGKILL, [&] { return fs::exists(out + ".training"); }});
  const ProcessResult resumed = run(joined(again, {"--resume"}));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_THAT(resumed.err, HasSubstr("100 of 120 steps  loss "));
  const std::vector<std::string> expected = lines_without_times(whole);
  EXPECT_EQ(expected.size(), 121u);
  EXPECT_EQ(lines_without_times(cut), expected);
  EXPECT_THAT(expected.front(), testing::StartsWith("step,loss,learning_rate,"));
  EXPECT_THAT(expected.back(), testing::StartsWith("120,"));
}

TEST_F(DistillCli, ASecondProcessIsRefusedAndAKilledOneLocksNobodyOut) {
  const std::vector<std::string> command =
      distill({"--steps", "100000", "--checkpoint-every", "1", "--out", out});
  const auto refuse_another = [&] {
    if (!fs::exists(out + ".training")) return false;
    expect_failure(command, 1, "is at work on it");
    expect_failure(joined(command, {"--resume"}), 1, "is at work on it");
    return true;
  };
  test::run_process(joined({DOFLA_BINARY}, command), {}, {}, {SIGKILL, refuse_another});
  EXPECT_TRUE(fs::exists(out + ".lock"));
  expect_failure(command, 1, "--resume");  // no longer locked, but not overwritten either
  EXPECT_FALSE(fs::exists(out + ".lock"));
}

TEST_F(DistillCli, ADamagedCheckpointIsRefused) {
  const std::vector<std::string> command =
      distill({"--steps", "100000", "--checkpoint-every", "1", "--out", out});
  test::run_process(joined({DOFLA_BINARY}, command), {}, {},
                    {SIGTERM, [&] { return fs::exists(out + ".training"); }});
  std::string contents = read_text(out + ".training");
  contents[contents.size() / 2] ^= 1;
  write_whole(out + ".training", contents);
  expect_failure(joined(command, {"--resume"}), 1, "student.training: damaged");
}

// The training fits on the disk, the model does not: nothing half-written, and nothing lost.
TEST_F(DistillCli, AFullDiskKeepsTheTraining) {
  const std::vector<std::string> arguments =
      distill({"--out", out, "--steps", "4"});  // kept at the end, too
  const auto room = fs::file_size(fs::path(model) / "model.safetensors") / 1024 / 2;
  std::string command = fmt::format("trap '' XFSZ; ulimit -f {}; exec '{}'", room, DOFLA_BINARY);
  for (const std::string& argument : arguments) command += " '" + argument + "'";
  const ProcessResult full = test::run_process({"/bin/bash", "-c", command});
  EXPECT_EQ(full.exit_code, 1) << full.err;
  EXPECT_THAT(full.err, HasSubstr("model.safetensors"));
  EXPECT_THAT(full.err, HasSubstr("student.training: go on with the same command and --resume\n"));
  EXPECT_FALSE(fs::exists(out));
  ASSERT_TRUE(fs::exists(out + ".training"));

  std::vector<std::string> again = arguments;
  again.push_back("--resume");
  const ProcessResult resumed = run(again);
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_TRUE(fs::exists(fs::path(out) / "model.safetensors"));
}

TEST_F(DistillCli, DryRunWritesNothing) {
  const Json estimate = json(distill({"--out", out, "--steps", "5", "--dry-run"}));
  EXPECT_GT(estimate["step_seconds"], 0);
  EXPECT_GT(estimate["peak_bytes"], 0);
  EXPECT_FALSE(fs::exists(out));
}

TEST_F(DistillCli, BadInputIsOneLine) {
  expect_failure(distill({"--out", out, "--resume"}), 1, "nothing to resume");
  expect_failure(distill({"--out", out, "--steps", "200", "--lr-z", "1000", "--lr-alpha", "1000"}),
                 1, "layer ");
  EXPECT_FALSE(fs::exists(out));
  const std::string plan = (scratch.path() / "plan.json").string();
  write_whole(plan,
              R"({"format":"dofla.plan","version":1,"strategy":"fix","cost":4,"lambda":0.004,)"
              R"("model":{"model_type":"llama","layers":2,"heads":2,"head_size":8},)"
              R"("dims":[4,4],"mean":4})");
  expect_failure(bare({"--out", out + "2", "--plan", plan}), 1, "llama");
  write_whole(plan,
              R"({"format":"dofla.plan","version":1,"strategy":"fix","cost":4,"lambda":0.004,)"
              R"("model":{"model_type":"gpt2","layers":3,"heads":3,"head_size":16},)"
              R"("dims":[4,0,4],"mean":4})");
  expect_failure(bare({"--out", out + "2", "--plan", plan}), 1, "dimensions");
  expect_failure({"distill", model, "--ids", ids(), "--held-out", "8", "--out", out + "2"}, 1,
                 "8 are held out");
  expect_failure(distill({"--out", "/dev/null/such", "--steps", "1"}), 1, "/dev/null");
  expect_failure(distill({}), 2, "--out");
  expect_failure(distill({"--out", out, "--loss", "cosine"}), 2, "cosine");
  expect_failure(distill({"--out", out, "--cost", "0"}), 2, "0");
}

}  // namespace
}  // namespace dofla
