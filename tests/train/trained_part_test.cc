// Fine-tuning of a part of a model: the rest keeps its bits, and costs no memory.
#include <algorithm>

#include <gtest/gtest.h>

#include "dofla/distill/training_file.h"
#include "dofla/train/finetune.h"
#include "tests/support/expect_error.h"
#include "tests/support/finetune_case.h"

namespace dofla {
namespace {

struct Part {
  TrainedPart train;
  int64_t lora;
};

constexpr Part kParts[] = {{TrainedPart::kFeatures, 0},
                           {TrainedPart::kAttention, 0},
                           {TrainedPart::kAttention, 2},
                           {TrainedPart::kAll, 0}};

class TrainingAPart : public testing::Test, protected test::FinetuneCase {
 protected:
  static FinetuneOptions of(const Part& part) {
    FinetuneOptions options = settings();
    options.train = part.train;
    options.lora = part.lora;
    options.keep_best = false;
    return options;
  }
  static bool is_feature(const std::string& name) { return name.starts_with("linear_attention."); }
  static bool is_attention(const std::string& name) { return name.find("self_attn") != name.npos; }
};

TEST_F(TrainingAPart, LeavesTheRestAsItWas) {
  const NamedTensors start = copy_of(linear_model());
  for (const Part& part : kParts) {
    Transformer model = linear_model();
    finetune(model, examples, of(part), judge());
    const NamedTensors end = copy_of(model);
    ASSERT_EQ(end.size(), start.size());
    for (size_t i = 0; i < end.size(); ++i) {
      const std::string& name = end[i].first;
      const bool learns = is_feature(name) || part.train == TrainedPart::kAll ||
                          (part.train == TrainedPart::kAttention && is_attention(name));
      EXPECT_EQ(!test::same_bits(end[i].second, start[i].second), learns) << name;
    }
  }
}

TEST_F(TrainingAPart, EachMakesTheLossSmaller) {
  for (const Part& part : kParts) {
    FinetuneOptions options = of(part);
    options.epochs = 12;
    options.learning_rate = part.train == TrainedPart::kAll ? 1e-3 : 1e-2;
    Transformer model = linear_model();
    const FinetuneResult result = finetune(model, examples, options, judge());
    EXPECT_LT(result.epoch_loss(11), result.epoch_loss(0)) << name(part.train) << part.lora;
  }
}

// W − W0 of rank 1 has equal ratios along its rows.
TEST_F(TrainingAPart, AnUpdateOfRankOneIsOne) {
  const NamedTensors start = copy_of(linear_model());
  FinetuneOptions options = of({TrainedPart::kAttention, 1});
  options.learning_rate = 0.05;
  Transformer model = linear_model();
  finetune(model, examples, options, judge());
  const NamedTensors end = copy_of(model);
  int64_t seen = 0;
  for (size_t i = 0; i < end.size(); ++i) {
    if (!is_attention(end[i].first) || end[i].second.rank() < 2) continue;
    ++seen;
    const Tensor &w = end[i].second, &w0 = start[i].second;
    const int64_t columns = w.size(1);
    const auto change = [&](int64_t r, int64_t c) {
      const int64_t at = r * columns + c;
      return static_cast<double>(w.data<float>()[at]) - w0.data<float>()[at];
    };
    double most = 0, minor = 0;
    for (int64_t r = 1; r < w.size(0); ++r)
      for (int64_t c = 1; c < columns; ++c) {
        most = std::max(most, std::abs(change(r, c) * change(0, 0)));
        minor =
            std::max(minor, std::abs(change(0, 0) * change(r, c) - change(0, c) * change(r, 0)));
      }
    EXPECT_LT(minor, 1e-3 * most) << end[i].first;  // float32 of W against a change of 1e-2
  }
  EXPECT_EQ(seen, 4 * checkpoint.config().layers);
}

TEST_F(TrainingAPart, ResumedEndsInTheSameBits) {
  for (const Part& part : kParts)
    for (const bool keep_best : {false, true}) {
      FinetuneOptions options = of(part);
      options.keep_best = keep_best;
      Transformer whole = linear_model();
      finetune(whole, examples, options, judge());
      options.checkpoint = scratch.path() / "run";
      options.checkpoint_every = 1;
      for (const int stop_after : {2, 4}) {
        fs::remove(options.checkpoint);
        options.resume = false;
        Transformer begun = linear_model();
        std::atomic<bool> stop = false;
        int steps = 0;
        const auto tell = [&](const ProgressUpdate&) { stop = ++steps >= stop_after; };
        EXPECT_THROW(finetune(begun, examples, options, judge(), Progress(tell, &stop)), Cancelled);
        options.resume = true;
        Transformer resumed = linear_model();
        finetune(resumed, examples, options, judge());
        EXPECT_TRUE(same_bits(copy_of(resumed), copy_of(whole))) << name(part.train) << part.lora;
      }
    }
}

TEST_F(TrainingAPart, AnotherPartIsAnotherRun) {
  FinetuneOptions options = of({TrainedPart::kAttention, 2});
  options.checkpoint = scratch.path() / "run";
  options.checkpoint_every = 1;
  Transformer model = linear_model();
  finetune(model, examples, options, judge());
  // The run keeps the factors, not the matrices.
  const Safetensors file(options.checkpoint);
  for (const std::string& name : file.names())
    EXPECT_TRUE(name.starts_with("history.") || is_feature(name.substr(name.find('.') + 1)) ||
                name.find(".lora_") != name.npos)
        << name;
  options.resume = true;
  options.lora = 3;
  Transformer other = linear_model();
  test::expect_error([&] { finetune(other, examples, options, judge()); }, {"lora"});
}

TEST_F(TrainingAPart, GradientsAreOnlyOfWhatLearns) {
  const Transformer model = linear_model();
  const auto bytes = [&](Trained what) {
    int64_t sum = 0;
    for (const auto& [name, tensor] : parameters(new_gradients(model, what))) sum += tensor.bytes();
    return sum;
  };
  int64_t attention = 0;
  for (const auto& [name, tensor] : model.parameters())
    if (is_attention(name)) attention += 4 * tensor.count();
  const int64_t features = bytes({.features = true});
  EXPECT_GT(features, 0);
  EXPECT_EQ(bytes({.attention = true, .features = true}), attention + features);
  EXPECT_GT(bytes(kEverything), 2 * attention);
}

// What is frozen is not copied either.
TEST_F(TrainingAPart, FrozenWeightsStayWhereTheyWere) {
  Transformer model = load_model(checkpoint);
  const Weights before = model.weights();
  model.make_trainable(DType::kBF16, {.attention = true});
  EXPECT_EQ(model.weights().token_embedding.raw(), before.token_embedding.raw());
  EXPECT_EQ(model.weights().layers[0].mlp_up.weight.raw(), before.layers[0].mlp_up.weight.raw());
  EXPECT_NE(model.weights().layers[0].projections[0].weight.raw(),
            before.layers[0].projections[0].weight.raw());
}

TEST_F(TrainingAPart, WhatCannotBeIsRefused) {
  Transformer softmax = load_model(checkpoint);
  test::expect_error(
      [&] {
        finetune(softmax, examples, of({TrainedPart::kFeatures, 0}), judge());
      },
      {"no features to train"});
  for (const Part& part :
       {Part{TrainedPart::kFeatures, 2}, {TrainedPart::kAll, 2}, {TrainedPart::kAttention, -1}}) {
    Transformer model = linear_model();
    EXPECT_THROW(finetune(model, examples, of(part), judge()), std::invalid_argument);
  }
  Transformer model = linear_model();
  test::expect_error(
      [&] {
        finetune(model, examples, of({TrainedPart::kAttention, 1000}), judge());
      },
      {"rank 1000"});
}

}  // namespace
}  // namespace dofla
