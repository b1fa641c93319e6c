#include "dofla/train/finetune.h"

#include <cmath>
#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dofla/train/finetuner.h"
#include "tests/support/expect_error.h"
#include "tests/support/finetune_case.h"
#include "tests/support/full_disk.h"
#include "tests/support/tolerance.h"

namespace dofla {
namespace {

class Finetuning : public testing::Test, protected test::FinetuneCase {};

struct Contents {
  NamedTensors tensors;
  std::map<std::string, std::string> metadata;
};

// Of a training file, which may be overwritten then.
Contents contents(const fs::path& path) {
  const Safetensors file(path);
  Contents all = {{}, file.metadata()};
  for (const std::string& name : file.names())
    all.tensors.emplace_back(name, file.tensor(name).clone());
  return all;
}

TEST_F(Finetuning, LearnsABatchByHeart) {
  const std::vector<EncodedQuestion> few = some_questions(6);
  Transformer softmax = load_model(checkpoint), linear = linear_model();
  for (Transformer* model : {&softmax, &linear}) {
    FinetuneOptions options;
    options.epochs = 30;
    options.batch = 6;
    options.learning_rate = 5e-3;
    options.keep_best = false;
    const double before = evaluate_task(*model, few).acc.mean;
    const FinetuneResult result =
        finetune(*model, lessons_of(few), options, [](const Transformer&) { return Judgement(); });
    EXPECT_LT(before, 1);
    EXPECT_EQ(evaluate_task(*model, few).acc.mean, 1);
    EXPECT_GT(result.loss.front(), 1);
    EXPECT_LT(result.loss.back(), 0.01);
    EXPECT_EQ(result.skipped(), 0);
  }
}

TEST_F(Finetuning, ResumedAtAnyCheckpointEndsInTheSameBits) {
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
  const FinetuneResult expected = finetune(whole, lessons, options, judge(), keep);
  copies.insert(options.checkpoint.string());  // the finished run
  ASSERT_EQ(copies.size(), 7u);
  EXPECT_FALSE(same_bits(copy_of(whole), start));

  options.resume = true;
  for (const std::string& copy : copies) {
    options.checkpoint = copy;
    Transformer resumed = linear_model();
    const FinetuneResult found = finetune(resumed, lessons, options, judge());
    EXPECT_TRUE(same_bits(copy_of(resumed), copy_of(whole))) << copy;
    EXPECT_EQ(found.loss, expected.loss) << copy;
    EXPECT_EQ(found.kept, expected.kept) << copy;
    ASSERT_EQ(found.epochs.size(), expected.epochs.size()) << copy;
    for (size_t i = 0; i < found.epochs.size(); ++i) {
      const TaskResult &then = found.epochs[i].answers, &once = expected.epochs[i].answers;
      EXPECT_EQ(found.epochs[i].score, expected.epochs[i].score);
      EXPECT_EQ(then.acc.standard_error, once.acc.standard_error);
      EXPECT_EQ(then.questions, once.questions);
    }
  }
}

TEST_F(Finetuning, DoesNotDependOnTheNumberOfThreads) {
  const auto train = [&] {
    Transformer model = linear_model();
    finetune(model, lessons, settings(), judge());
    return copy_of(model);
  };
  EXPECT_TRUE(same_bits(test::with_threads(1, train), test::with_threads(5, train)));
}

TEST_F(Finetuning, AnotherRunIsRefusedByWhatDiffers) {
  FinetuneOptions options = settings();
  options.checkpoint = scratch.path() / "run.training";
  options.run = {{"task", "none"}};
  Transformer model = linear_model();
  finetune(model, lessons, options, judge());
  options.resume = true;
  const auto refused = [&](const FinetuneOptions& other, const std::vector<EncodedQuestion>& asked,
                           Transformer on, std::string_view part) {
    test::expect_error([&] { finetune(on, lessons_of(asked), other, judge()); },
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
TEST_F(Finetuning, ARunOfAnotherDeviceIsRefused) {
  FinetuneOptions options = settings();
  options.checkpoint = scratch.path() / "run.training";
  Transformer model = linear_model();
  const FinetuneResult result = finetune(model, lessons, options, judge());
  EXPECT_EQ(result.run["device"], "cpu");
  auto [tensors, metadata] = contents(options.checkpoint);
  std::string& run = metadata.at("dofla.run");
  const std::string_view here = R"("device":"cpu")";
  run.replace(run.find(here), here.size(), R"("device":"cuda")");
  write_safetensors(options.checkpoint, tensors, metadata);
  options.resume = true;
  Transformer fresh = linear_model();
  test::expect_error([&] { finetune(fresh, lessons, options, judge()); },
                     {"run.training", "began on cuda, this is cpu", "--device cuda"});
}

// Each thing that is checked when a run is read.
TEST_F(Finetuning, ABrokenCheckpointIsRefused) {
  FinetuneOptions options = settings();
  options.checkpoint = scratch.path() / "run.training";
  Transformer model = linear_model();
  finetune(model, lessons, options, judge());
  const Contents file = contents(options.checkpoint);
  options.resume = true;
  const auto refused = [&](const std::string& name, const Tensor& instead, std::string_view part) {
    NamedTensors broken;
    for (const auto& [known, tensor] : file.tensors)
      if (known != name) broken.emplace_back(known, tensor);
    if (instead.defined()) broken.emplace_back(name, instead);
    write_safetensors(options.checkpoint, broken, file.metadata);
    Transformer fresh = linear_model();
    test::expect_error([&] { finetune(fresh, lessons, options, judge()); },
                       {"run.training", name, part});
  };
  refused("history.loss", {}, "history.loss");
  refused("history.loss", Tensor::zeros({7}, DType::kF64), "at most 6");
  refused("history.loss", Tensor::zeros({6}), "numbers");
  refused("history.judgements", Tensor::zeros({3, 7}, DType::kF64), "rows of 8");
  refused("history.judgements", Tensor::zeros({2, 8}, DType::kF64), "expected 3 rows, found 2");
  Tensor negative = Tensor::zeros({3, 8}, DType::kF64);
  negative.data<double>()[0] = -1;
  refused("history.judgements", negative, "-1");
  const std::string weight = parameters(model, kEverything).front().first;
  for (const std::string& name : {weight, "moments." + weight + ".mean", "best." + weight}) {
    refused(name, {}, name);
    refused(name, Tensor::zeros({2}), "found F32 [2]");
  }
  refused("moments." + weight + ".steps", Tensor::zeros({1}), "expected I64 [1]");
}

TEST_F(Finetuning, PartsOfABatchAddUpToTheWhole) {
  const auto step = [&](int64_t part_tokens) {
    FinetuneOptions options = settings();
    options.batch = 12;
    options.part_tokens = part_tokens;
    Transformer model = linear_model();
    Finetuner trainer(model, lessons, options);
    trainer.take({});
    trainer.step();
    return std::pair(trainer.loss().back(), copy_of(model));
  };
  const auto [one_loss, one] = step(1 << 20);
  const auto [parts_loss, parts] = step(1);
  const ModelConfig& config = checkpoint.config();
  const double relative =
      test::float32_tolerance(std::max(config.vocabulary, config.mlp_width), 12 * config.layers, 1);
  EXPECT_NEAR(parts_loss, one_loss, relative * one_loss);
  // A first step of Adam is the rate times the sign of the gradient, whatever its size: no element
  // moves further than twice the rate, and few gradients are small enough to change their sign.
  const double rate = settings().learning_rate;
  int64_t moved = 0, all = 0;
  for (size_t i = 0; i < one.size(); ++i) {
    test::expect_near(parts[i].second, one[i].second, 2.001 * rate, one[i].first);
    for (int64_t j = 0; j < one[i].second.count(); ++j, ++all)
      moved += std::abs(parts[i].second.data<float>()[j] - one[i].second.data<float>()[j]) >
               relative * rate;
  }
  EXPECT_LT(moved, all / 100);
}

TEST_F(Finetuning, EveryEpochTakesEveryQuestionOnceInAnotherOrder) {
  FinetuneOptions options = settings();
  options.learning_rate = 0;
  options.weight_decay = 0;
  Transformer model = linear_model();
  const FinetuneResult result = finetune(model, lessons, options, judge());
  ASSERT_EQ(result.loss.size(), 6u);  // 5, 5 and 2 of 12 questions, twice
  const auto sum = [&](size_t at) {
    return 5 * result.loss[at] + 5 * result.loss[at + 1] + 2 * result.loss[at + 2];
  };
  const ModelConfig& config = checkpoint.config();
  EXPECT_NEAR(sum(0), sum(3),
              test::float32_tolerance(config.vocabulary, 4 * config.layers, sum(0)));
  EXPECT_NE(result.loss[0], result.loss[3]);
  options.seed = 1;
  Transformer again = linear_model();
  EXPECT_NE(finetune(again, lessons, options, judge()).loss[0], result.loss[0]);
}

TEST_F(Finetuning, KeepsTheFirstOfTheBestEpochsOrTheLast) {
  for (const bool keep_best : {true, false}) {
    FinetuneOptions options = settings();
    options.epochs = 4;
    options.keep_best = keep_best;
    std::vector<NamedTensors> seen;
    const double script[] = {0.9, 0.2, 0.5, 0.5, 0.4};  // before, then after every epoch
    const Judge scripted = [&](const Transformer& model) {
      const Judgement judgement = {script[seen.size()], {}};
      seen.push_back(copy_of(model));
      return judgement;
    };
    Transformer model = load_model(checkpoint);
    const FinetuneResult result = finetune(model, lessons, options, scripted);
    EXPECT_EQ(result.before.score, 0.9);
    EXPECT_EQ(result.kept, keep_best ? 1 : 3);
    EXPECT_TRUE(same_bits(copy_of(model), seen[static_cast<size_t>(result.kept) + 1]));
    EXPECT_FALSE(same_bits(seen[2], seen[4]));
  }
}

TEST_F(Finetuning, ARunawayStopsAndKeepsTheRunAsItWas) {
  FinetuneOptions options = settings();
  options.epochs = 20;
  options.learning_rate = 30;
  options.clip = 0;
  options.checkpoint_every = 1;
  options.checkpoint = scratch.path() / "run.training";
  Transformer model = load_model(checkpoint);
  test::expect_error([&] { finetune(model, lessons, options, judge()); },
                     {"step ", "lower learning rate", "run.training", "after step"});
  const Safetensors kept(options.checkpoint);
  for (const auto& [name, tensor] : parameters(model, kEverything))
    EXPECT_TRUE(std::isfinite(test::largest(kept.tensor(name)))) << name;
  const Tensor loss = kept.tensor("history.loss");
  EXPECT_LT(loss.count(), 10);  // steps that the rule waits for
  EXPECT_LE(test::largest(loss) / static_cast<double>(loss.count()),
            10 * std::max(loss.data<double>()[0], 1.0));
}

TEST_F(Finetuning, StepsThatAreNotFiniteAreSkippedAndEndTheRun) {
  Transformer model = load_model(checkpoint);
  model.make_trainable();
  NamedTensors weights = parameters(model, kEverything);
  weights[0].second.data<float>()[0] = std::nanf("");
  std::vector<EncodedQuestion> with_it = questions;
  for (EncodedQuestion& question : with_it) question.candidates[0].ids[0] = 0;
  FinetuneOptions options = settings();
  test::expect_error([&] { finetune(model, lessons_of(with_it), options, judge()); },
                     {"last 6 steps were not finite"});
}

TEST_F(Finetuning, AFullDiskLeavesTheLastCheckpoint) {
  FinetuneOptions options = settings();
  options.checkpoint = scratch.path() / "run.training";
  Transformer model = load_model(checkpoint);
  finetune(model, lessons, options, judge());
  const std::string before = read_text(options.checkpoint);
  {
    const test::FullDisk disk(1 << 16);
    Transformer other = load_model(checkpoint);
    test::expect_error([&] { finetune(other, lessons, options, judge()); },
                       {"run.training", "cannot write"});
  }
  EXPECT_EQ(read_text(options.checkpoint), before);
}

TEST_F(Finetuning, MisuseIsRefused) {
  Transformer model = load_model(checkpoint);
  const auto refused = [&](const FinetuneOptions& options) {
    EXPECT_THROW(finetune(model, lessons, options, judge()), std::invalid_argument);
  };
  FinetuneOptions options = settings();
  EXPECT_THROW(finetune(model, Lessons(), options, judge()), std::invalid_argument);
  EXPECT_THROW(finetune(model, lessons, options, {}), std::invalid_argument);
  options.batch = 0;
  refused(options);
  options = settings();
  options.warmup = 1;
  refused(options);
}

TEST(PaperSettings, AreThereForEveryTask) {
  for (const Task& task : tasks()) {
    const FinetuneOptions options = paper_finetune_options(task.name);
    EXPECT_EQ(options.epochs, task.name == "mmlu" ? 1 : 3);
    EXPECT_EQ(options.keep_best, task.name != "mmlu");
    EXPECT_TRUE(options.batch == 64 || options.batch == 128);
  }
  EXPECT_EQ(paper_finetune_options("winogrande").learning_rate, 5e-4);
  test::expect_error([] { paper_finetune_options("squad"); }, {"squad"});
}

}  // namespace
}  // namespace dofla
