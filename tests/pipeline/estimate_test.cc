#include "dofla/pipeline/estimate.h"

#include <gtest/gtest.h>

#include "dofla/checkpoint/parameters.h"
#include "dofla/model/operations.h"
#include "tests/support/fixtures.h"

namespace dofla {
namespace {

ModelConfig gpt2_small() {
  ModelConfig config;
  config.layers = 12;
  config.heads = config.kv_heads = 12;
  config.head_size = 64;
  config.width = 768;
  config.mlp_width = 3072;
  config.vocabulary = 50257;
  config.context = 1024;
  config.learned_positions = config.tied_head = true;
  return config;
}

ModelConfig llama(int64_t layers, int64_t heads, int64_t kv_heads, int64_t head_size,
                  int64_t mlp_width, int64_t vocabulary) {
  ModelConfig config;
  config.layers = layers;
  config.heads = heads;
  config.kv_heads = kv_heads;
  config.head_size = head_size;
  config.width = heads * head_size;
  config.mlp_width = mlp_width;
  config.vocabulary = vocabulary;
  config.gated_mlp = true;
  return config;
}

const ModelConfig kTinyLlama = llama(22, 32, 4, 64, 5632, 32000);
const ModelConfig kLlama8b = llama(32, 32, 8, 128, 14336, 128256);

StageEstimate stage(const ModelConfig& config, std::string_view name,
                    const EstimateOptions& options = {}) {
  for (StageEstimate& found : estimate_stages(config, options))
    if (found.stage == name) return found;
  throw std::logic_error("no such stage");
}

// The figures of docs/scale.md, "Estimating beforehand": measured on one H200.
TEST(Estimate, PredictsTheRunsThatWereMeasuredWithinAQuarter) {
  struct Measured {
    const ModelConfig& config;
    const char* stage;
    int64_t batch;
    double tokens_per_second;
  };
  const ModelConfig small = gpt2_small();
  for (const Measured& run : {Measured{small, "distill", 32, 1024 / 1.03e-3},
                              {small, "finetune --teacher", 8, 305'000},
                              {kTinyLlama, "distill", 8, 141'000},
                              {kLlama8b, "distill", 8, 25'000},
                              {kTinyLlama, "finetune --teacher", 8, 42'000}}) {
    const double found = stage(run.config, run.stage, {.batch = run.batch}).tokens_per_second;
    EXPECT_NEAR(found / run.tokens_per_second, 1, 0.25) << run.stage << ' ' << run.config.layers;
  }
  EXPECT_NEAR(stage(kLlama8b, "distill").bytes, 32e9, 0.25 * 32e9);
  EXPECT_FALSE(stage(kLlama8b, "finetune --teacher").fits({}));
}

// What learns less needs less of both.
TEST(Estimate, PartsOfAModelTakeLess) {
  const StageEstimate all = stage(kLlama8b, "finetune --teacher");
  const StageEstimate attention = stage(kLlama8b, "finetune --teacher --train attention");
  const StageEstimate features = stage(kLlama8b, "finetune --teacher --train features");
  EXPECT_LT(all.tokens_per_second, attention.tokens_per_second);
  EXPECT_LT(attention.tokens_per_second, features.tokens_per_second);
  // Weights that learn take 18 bytes, the others 2.
  EXPECT_NEAR(all.bytes - features.bytes, 16 * matrix_weights(kLlama8b), 1);
  EXPECT_NEAR(attention.bytes - features.bytes, 16 * attention_weights(kLlama8b), 1);
}

TEST(Estimate, FollowsTheMachine) {
  const StageEstimate one = stage(kTinyLlama, "distill");
  EstimateOptions options;
  options.machine.products /= 2;
  EXPECT_NEAR(stage(kTinyLlama, "distill", options).tokens_per_second, one.tokens_per_second / 2,
              1e-6 * one.tokens_per_second);
  options = {.batch = 16, .machine = {.gpus = 2}};
  EXPECT_NEAR(stage(kTinyLlama, "distill", options).tokens_per_second, 2 * one.tokens_per_second,
              1e-6 * one.tokens_per_second);
  EXPECT_DOUBLE_EQ(stage(kTinyLlama, "distill", options).bytes, one.bytes);
}

TEST(Estimate, GpusShareTheMoments) {
  const double alone = stage(kLlama8b, "finetune --teacher").bytes;
  const StageEstimate four =
      stage(kLlama8b, "finetune --teacher", {.batch = 32, .machine = {.gpus = 4}});
  EXPECT_NEAR(alone - four.bytes, 8 * 0.75 * matrix_weights(kLlama8b), 1);
  EXPECT_TRUE(four.fits({}));
}

TEST(Estimate, SmallMomentsTakeHalf) {
  const double whole = stage(kLlama8b, "finetune --teacher").bytes;
  const double small =
      stage(kLlama8b, "finetune --teacher", {.moments = MomentType::kBFloat16}).bytes;
  EXPECT_NEAR(whole - small, 4 * matrix_weights(kLlama8b), 1);
}

TEST(Estimate, RefusesWhatIsNoRun) {
  EXPECT_THROW(estimate_stages(kTinyLlama, {.length = 0}), std::invalid_argument);
  EXPECT_THROW(estimate_stages(kTinyLlama, {.batch = 4, .machine = {.gpus = 8}}),
               std::invalid_argument);
}

// Biases and norms are not among the matrices, and are few.
TEST(Operations, CountTheWeightsOfEveryFamily) {
  for (const std::string& name : test::fixture_models()) {
    const Checkpoint checkpoint(test::fixtures() / name);
    const double found = matrix_weights(checkpoint.config());
    const auto all = static_cast<double>(count_parameters(checkpoint).count);
    EXPECT_LE(found, all) << name;
    EXPECT_GE(found, 0.9 * all) << name;
  }
}

}  // namespace
}  // namespace dofla
