#include "dofla/train/finetune.h"

#include <cmath>

#include <gtest/gtest.h>

#include "dofla/train/finetuner.h"
#include "tests/support/expect_error.h"
#include "tests/support/finetune_case.h"
#include "tests/support/tolerance.h"

namespace dofla {
namespace {

class Finetuning : public testing::Test, protected test::FinetuneCase {};

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
        finetune(*model, examples_of(few), options, [](const Transformer&) { return Judgement(); });
    EXPECT_LT(before, 1);
    EXPECT_EQ(evaluate_task(*model, few).acc.mean, 1);
    EXPECT_GT(result.loss.front(), 1);
    EXPECT_LT(result.loss.back(), 0.01);
    EXPECT_EQ(result.skipped(), 0);
  }
}

TEST_F(Finetuning, DoesNotDependOnTheNumberOfThreads) {
  const auto train = [&] {
    Transformer model = linear_model();
    finetune(model, examples, settings(), judge());
    return copy_of(model);
  };
  EXPECT_TRUE(same_bits(test::with_threads(1, train), test::with_threads(5, train)));
}

TEST_F(Finetuning, PartsOfABatchAddUpToTheWhole) {
  const auto step = [&](int64_t part_tokens) {
    FinetuneOptions options = settings();
    options.batch = 12;
    options.part_tokens = part_tokens;
    Transformer model = linear_model();
    Finetuner trainer(model, examples, options);
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
  const FinetuneResult result = finetune(model, examples, options, judge());
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
  EXPECT_NE(finetune(again, examples, options, judge()).loss[0], result.loss[0]);
}

TEST_F(Finetuning, KeepsTheFirstOfTheBestEpochsTheBeginningOrTheLast) {
  struct Case {
    bool keep_best;
    double before;
    int64_t kept;
  };
  // The best epoch is kept where it is as good as the beginning, too.
  for (const auto& [keep_best, before, kept] :
       {Case{true, 0.3, 2}, {true, 0.5, 2}, {true, 0.9, 0}, {false, 0.3, 4}, {false, 0.9, 4}}) {
    FinetuneOptions options = settings();
    options.epochs = 4;
    options.keep_best = keep_best;
    std::vector<NamedTensors> seen;
    const double script[] = {before, 0.2, 0.5, 0.5, 0.4};  // then after every epoch
    const Judge scripted = [&](const Transformer& model) {
      const Judgement judgement = {script[seen.size()], {}};
      seen.push_back(copy_of(model));
      return judgement;
    };
    Transformer model = load_model(checkpoint);
    const FinetuneResult result = finetune(model, examples, options, scripted);
    EXPECT_EQ(result.before.score, before);
    EXPECT_EQ(result.kept, kept);
    EXPECT_EQ(result.kept_judgement().score, script[kept]);
    EXPECT_EQ(result.is_worse(), kept == 4 && before == 0.9);
    EXPECT_TRUE(same_bits(copy_of(model), seen[static_cast<size_t>(kept)]));
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
  test::expect_error([&] { finetune(model, examples, options, judge()); },
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
  test::expect_error([&] { finetune(model, examples_of(with_it), options, judge()); },
                     {"last 6 steps were not finite"});
}

TEST_F(Finetuning, MisuseIsRefused) {
  Transformer model = load_model(checkpoint);
  const auto refused = [&](const FinetuneOptions& options) {
    EXPECT_THROW(finetune(model, examples, options, judge()), std::invalid_argument);
  };
  FinetuneOptions options = settings();
  EXPECT_THROW(finetune(model, TrainingExamples(), options, judge()), std::invalid_argument);
  EXPECT_THROW(finetune(model, examples, options, {}), std::invalid_argument);
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
  // Pythia-1B's: its own rates, and half the batch.
  EXPECT_EQ(paper_finetune_options("piqa", "gpt_neox").learning_rate, 1e-5);
  for (const Task& task : tasks()) {
    const FinetuneOptions gpt2 = paper_finetune_options(task.name);
    const FinetuneOptions pythia = paper_finetune_options(task.name, "gpt_neox");
    EXPECT_EQ(2 * pythia.batch, gpt2.batch);
    EXPECT_EQ(pythia.epochs, gpt2.epochs);
    EXPECT_EQ(pythia.keep_best, gpt2.keep_best);
  }
  test::expect_error([] { paper_finetune_options("squad"); }, {"squad"});
}

}  // namespace
}  // namespace dofla
