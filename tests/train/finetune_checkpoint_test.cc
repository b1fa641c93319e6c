// A fine-tuning run as it is kept on disk: gone on with, refused, and never lost.
#include <atomic>
#include <set>

#include <gtest/gtest.h>

#include "dofla/distill/training_file.h"
#include "dofla/train/finetune.h"
#include "tests/support/expect_error.h"
#include "tests/support/finetune_case.h"
#include "tests/support/full_disk.h"

namespace dofla {
namespace {

class FinetuneCheckpoint : public testing::Test, protected test::FinetuneCase {
 protected:
  NamedTensors start_of_linear_model() const {
    Transformer model = linear_model();
    model.make_trainable();
    return copy_of(model);
  }
};

struct Contents {
  NamedTensors tensors;
  Json run;
};

// Of a training file, which may be overwritten then.
Contents contents(const fs::path& path) {
  const Safetensors file(path);
  Contents all = {{}, read_run(path)};
  for (const std::string& name : file.names())
    all.tensors.emplace_back(name, file.tensor(name).clone());
  return all;
}

TEST_F(FinetuneCheckpoint, ResumedAtAnyCheckpointEndsInTheSameBits) {
  FinetuneOptions options = settings();
  options.checkpoint_every = 1;
  options.checkpoint = scratch.path() / "run.training";
  Transformer whole = linear_model();
  const NamedTensors start = [&] {
    whole.make_trainable();
    return copy_of(whole);
  }();
  // Copies of the file as it was at every moment that it was written, seen after the step.
  std::set<std::string> copies;
  const auto keep = [&](const ProgressUpdate& update) {
    const fs::path to = scratch.path() / fmt::format("{} step {}", update.stage, update.done);
    if (fs::exists(options.checkpoint)) fs::copy_file(options.checkpoint, to);
    copies.insert(to.string());
  };
  const FinetuneResult expected = finetune(whole, examples, options, judge(), keep);
  copies.insert(options.checkpoint.string());  // the finished run
  ASSERT_EQ(copies.size(), 7u);
  EXPECT_FALSE(same_bits(copy_of(whole), start));

  options.resume = true;
  for (const std::string& copy : copies) {
    options.checkpoint = copy;
    Transformer resumed = linear_model();
    const FinetuneResult found = finetune(resumed, examples, options, judge());
    EXPECT_TRUE(same_bits(copy_of(resumed), copy_of(whole))) << copy;
    EXPECT_EQ(found.loss, expected.loss) << copy;
    EXPECT_EQ(found.kept, expected.kept) << copy;
    ASSERT_EQ(found.epochs.size(), expected.epochs.size()) << copy;
    for (size_t i = 0; i < found.epochs.size(); ++i) {
      const TaskResult &then = found.epochs[i].answers, &once = expected.epochs[i].answers;
      EXPECT_EQ(found.epochs[i].score, expected.epochs[i].score);
      EXPECT_EQ(found.epochs[i].loss, expected.epochs[i].loss);
      EXPECT_EQ(then.acc.standard_error, once.acc.standard_error);
      EXPECT_EQ(then.questions, once.questions);
    }
  }
}

// Stopped after every step and in every judgement, and each time gone on with.
TEST_F(FinetuneCheckpoint, StoppedAnywhereItGoesOnToTheSameBits) {
  FinetuneOptions options = settings();
  options.checkpoint_every = 1000;
  for (const bool beginning_is_best : {false, true}) {
    const auto scored = [&](const Transformer& now) {
      Judgement judgement = judge()(now);
      if (same_bits(copy_of(now), start_of_linear_model())) judgement.score += beginning_is_best;
      return judgement;
    };
    Transformer whole = linear_model();
    options.checkpoint.clear();
    options.resume = false;
    const FinetuneResult expected = finetune(whole, examples, options, scored);
    EXPECT_EQ(expected.kept == 0, beginning_is_best);

    options.checkpoint = scratch.path() / fmt::format("run-{}.training", beginning_is_best);
    std::atomic<bool> stop = false;
    int64_t stops = 0;
    while (true) {
      Transformer part = linear_model();
      stop = false;
      const auto stop_it = [&](const ProgressUpdate&) { stop = true; };
      const Progress progress(stop_it, &stop);
      bool judged = stops % 2 == 0;  // else the judgement is interrupted
      const Judge interrupted = [&](const Transformer& now) {
        if (!judged) throw Cancelled("in the middle");
        judged = false;
        return scored(now);
      };
      try {
        const FinetuneResult found = finetune(part, examples, options, interrupted, progress);
        EXPECT_TRUE(same_bits(copy_of(part), copy_of(whole)));
        EXPECT_EQ(found.loss, expected.loss);
        EXPECT_EQ(found.kept, expected.kept);
        break;
      } catch (const Cancelled&) {
        options.resume = true;
        ASSERT_LT(++stops, 100);
      }
    }
    EXPECT_GT(stops, static_cast<int64_t>(expected.loss.size()));
  }
}

TEST_F(FinetuneCheckpoint, IsAlsoWrittenByTime) {
  FinetuneOptions options = settings();
  options.checkpoint_every = 1000;
  options.checkpoint = scratch.path() / "run.training";
  for (const double seconds : {1e9, 0.0}) {
    options.checkpoint_seconds = seconds;
    std::set<int64_t> kept;  // how many losses the file has, before every step is kept
    Transformer model = linear_model();
    finetune(model, examples, options, judge(), [&](const ProgressUpdate&) {
      kept.insert(Safetensors(options.checkpoint).tensor("history.loss").count());
    });
    EXPECT_EQ(kept.contains(1), seconds == 0) << seconds;
  }
}

TEST_F(FinetuneCheckpoint, AnotherRunIsRefusedByWhatDiffers) {
  FinetuneOptions options = settings();
  options.checkpoint = scratch.path() / "run.training";
  options.run = {{"task", "none"}};
  Transformer model = linear_model();
  finetune(model, examples, options, judge());
  options.resume = true;
  const auto refused = [&](const FinetuneOptions& other, const std::vector<EncodedQuestion>& asked,
                           Transformer on, std::string_view part) {
    test::expect_error([&] { finetune(on, examples_of(asked), other, judge()); },
                       {"run.training", part});
  };
  FinetuneOptions other = options;
  other.learning_rate = 0.5;
  refused(other, questions, linear_model(), "lr 0.001, not 0.5");
  other = options;
  other.run["task"] = "some";
  refused(other, questions, linear_model(), "task \"none\"");
  std::vector<EncodedQuestion> changed = questions;
  changed[3].gold = 1 - std::min(changed[3].gold, int64_t{1});
  refused(options, changed, linear_model(), "text");
  refused(options, questions, load_model(checkpoint), "weights");
  refused(options, questions, std::move(model), "weights");
  fs::resize_file(options.checkpoint, fs::file_size(options.checkpoint) / 2);
  refused(options, questions, linear_model(), "run.training");
}

// The file is the same on every device; the bits that a run would go on in are not.
TEST_F(FinetuneCheckpoint, ARunOfAnotherDeviceIsRefused) {
  FinetuneOptions options = settings();
  options.checkpoint = scratch.path() / "run.training";
  Transformer model = linear_model();
  const FinetuneResult result = finetune(model, examples, options, judge());
  EXPECT_EQ(result.run["device"], "cpu");
  auto [tensors, run] = contents(options.checkpoint);
  run["device"] = "cuda";
  write_training_file(options.checkpoint, tensors, run);
  options.resume = true;
  Transformer fresh = linear_model();
  test::expect_error([&] { finetune(fresh, examples, options, judge()); },
                     {"run.training", "began on cuda, this is cpu", "resume it on cuda"});
}

// Weights and moments are large: they are written where the run needs them to go on.
TEST_F(FinetuneCheckpoint, HasWhatTheRunNeedsToGoOn) {
  const NamedTensors all = parameters(linear_model(), kEverything);
  for (const bool keep_best : {true, false}) {
    FinetuneOptions options = settings();
    options.keep_best = keep_best;
    options.checkpoint = scratch.path() / "run.training";
    options.checkpoint_every = 1;
    std::vector<size_t> tensors;  // in the file, as each step begins
    const auto look = [&](const ProgressUpdate&) {
      tensors.push_back(contents(options.checkpoint).tensors.size());
    };
    Transformer model = linear_model();
    finetune(model, examples, options, judge(), look);
    const size_t history = 2, optimizer = 4 * all.size() + 1, best = keep_best ? all.size() : 0;
    EXPECT_EQ(tensors, (std::vector<size_t>{history, history + optimizer, history + optimizer,
                                            history + optimizer + best, history + optimizer + best,
                                            history + optimizer + best}));
    EXPECT_EQ(contents(options.checkpoint).tensors.size(), history + all.size());
  }
}

TEST_F(FinetuneCheckpoint, WaitsForItsPause) {
  FinetuneOptions options = settings();
  options.checkpoint = scratch.path() / "run.training";
  options.checkpoint_every = 1;
  options.checkpoint_pause = 1e6;
  Transformer model = linear_model();
  finetune(model, examples, options, judge());
  EXPECT_EQ(contents(options.checkpoint).tensors.size(), 2u) << "as it was before the first step";
}

// Each thing that is checked when a run is read.
TEST_F(FinetuneCheckpoint, ABrokenCheckpointIsRefused) {
  FinetuneOptions options = settings();
  options.checkpoint = scratch.path() / "run.training";
  options.checkpoint_every = 1;
  Transformer model = linear_model();
  Contents begun;  // after the first step of the second epoch
  finetune(model, examples, options, judge(), [&](const ProgressUpdate& update) {
    if (update.stage == "epoch 2 of 2" && update.done == 2) begun = contents(options.checkpoint);
  });
  const Contents over = contents(options.checkpoint);
  options.resume = true;
  const auto refused = [&](const Contents& file, const std::string& name, const Tensor& instead,
                           std::string_view part) {
    NamedTensors broken;
    for (const auto& [known, tensor] : file.tensors)
      if (known != name) broken.emplace_back(known, tensor);
    if (instead.defined()) broken.emplace_back(name, instead);
    write_training_file(options.checkpoint, broken, file.run);
    Transformer fresh = linear_model();
    test::expect_error([&] { finetune(fresh, examples, options, judge()); },
                       {"run.training", name, part});
  };
  refused(begun, "history.loss", {}, "history.loss");
  refused(begun, "history.loss", Tensor::zeros({7}, DType::kF64), "at most 6");
  refused(begun, "history.loss", Tensor::zeros({6}), "numbers");
  refused(begun, "history.judgements", Tensor::zeros({2, 7}, DType::kF64), "rows of 9");
  refused(begun, "history.judgements", Tensor::zeros({3, 9}, DType::kF64),
          "expected 2 rows, found 3");
  Tensor negative = Tensor::zeros({2, 9}, DType::kF64);
  negative.data<double>()[0] = -1;
  refused(begun, "history.judgements", negative, "-1");
  const std::string weight = parameters(model, kEverything).front().first;
  for (const std::string& name : {weight, "moments." + weight + ".mean", "best." + weight}) {
    refused(begun, name, {}, name);
    refused(begun, name, Tensor::zeros({2}), "found F32 [2]");
  }
  refused(begun, "moments." + weight + ".steps", Tensor::zeros({1}), "expected I64 [1]");
  refused(over, "best." + weight, {}, "best." + weight);
  refused(over, "best." + weight, Tensor::zeros({2}), "found F32 [2]");
}

TEST_F(FinetuneCheckpoint, AFullDiskLeavesTheLastCheckpoint) {
  FinetuneOptions options = settings();
  options.checkpoint = scratch.path() / "run.training";
  Transformer model = load_model(checkpoint);
  finetune(model, examples, options, judge());
  const std::string before = read_text(options.checkpoint);
  {
    const test::FullDisk disk(1 << 16);
    Transformer other = load_model(checkpoint);
    test::expect_error([&] { finetune(other, examples, options, judge()); },
                       {"run.training", "cannot write"});
  }
  EXPECT_EQ(read_text(options.checkpoint), before);
}

}  // namespace
}  // namespace dofla
