#include "dofla/pipeline.h"

#include <gtest/gtest.h>

#include "dofla/sensitivity/allocate.h"
#include "tests/support/expect_error.h"
#include "tests/support/fixtures.h"

namespace dofla {
namespace {

std::vector<TokenIds> windows(const std::vector<int64_t>& lengths) {
  std::vector<TokenIds> all;
  for (const int64_t length : lengths)
    all.emplace_back(static_cast<size_t>(length), static_cast<int64_t>(all.size()));
  return all;
}

// What a student is judged by is the end of the text, and none of it is trained on.
TEST(SplitHeldOut, TheLastWindowsAreNotTrainedOn) {
  const std::vector<TokenIds> all = windows({4, 4, 4, 4, 4});
  const DistillText text = split_held_out(all, 2);
  EXPECT_EQ(text.train.all(), (std::vector<TokenIds>{all[0], all[1], all[2]}));
  EXPECT_EQ(text.held_out.all(), (std::vector<TokenIds>{all[3], all[4]}));
}

TEST(SplitHeldOut, SomethingMustBeLeftToTrainOn) {
  EXPECT_EQ(split_held_out(windows({4, 4, 4}), 2).train.size(), 1u);
  test::expect_error(
      [] {
        split_held_out(windows({4, 4, 4}), 3);
      },
      {"3 windows of 4 tokens", "3 are held out"});
}

void expect_contradiction(const DistillOptions& options, const std::string& part) {
  try {
    require_sound(options);
    ADD_FAILURE() << "accepted; expected: " << part;
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(DistillOptions, DegreesOfFreedomHaveOptionsOnlyWhereTheyAreMeasured) {
  DistillOptions options;
  require_sound(options);
  options.dof = DofOptions();
  expect_contradiction(options, "have no effect");  // by sensitivity, where nothing else is said
  options.plan = AllocateOptions();
  require_sound(options);
  const DimensionPlan plan = fixed_plan({"gpt2", 1, 1, 4}, 4);
  for (const auto& given :
       {decltype(options.plan)(plan),
        decltype(options.plan)(AllocateOptions{.strategy = PlanStrategy::kFix})}) {
    options.plan = given;
    expect_contradiction(options, "have no effect");
    options.recipe = make_recipe({.init = FeatureInit::kLeverage});  // takes their samples and λ
    require_sound(options);
    options.recipe = make_recipe();
  }
  options.dof.reset();
  require_sound(options);
}

TEST(DistillOptions, APowerIsForDofHeadAlone) {
  DistillOptions options;
  options.plan = AllocateOptions{.strategy = PlanStrategy::kDof, .power = 1};
  expect_contradiction(options, "power has no effect");
  options.plan = AllocateOptions{.strategy = PlanStrategy::kDofHead, .power = 1};
  require_sound(options);
}

TEST(DistillOptions, AStudentToGoOnFromSaysWhatItsFeaturesAre) {
  const DimensionPlan plan = fixed_plan({"gpt2", 1, 1, 4}, 4);
  DistillOptions options;
  options.recipe = make_recipe({.features = FeatureMap::kPrf});
  options.plan = StudentFeatures{plan, init_features(plan, {})};
  require_sound(options);
  options.recipe = make_recipe({.features = FeatureMap::kPerformer});
  expect_contradiction(options, "performer");
  options.recipe = make_recipe();
  expect_contradiction(options, "untied");
  options.recipe = make_recipe({.features = FeatureMap::kPrf});
  options.coordinates = Coordinates::kBalanced;
  expect_contradiction(options, "the features to go on from are in raw ones");
  options.coordinates = {};
  options.plan = StudentFeatures{fixed_plan(plan.model, 5), init_features(plan, {})};
  expect_contradiction(options, "the plan that they are of");
}

// A run that goes on from other coordinates is another run, whatever the features.
TEST(DistillOptions, AStudentToGoOnFromIsKnownByItsCoordinatesToo) {
  const Checkpoint checkpoint(test::fixtures() / "gpt2");
  const ModelConfig& config = checkpoint.config();
  const DimensionPlan plan = fixed_plan(identity_of(config), 4);
  const DistillText text = {.train = {{1, 2, 3, 4}}, .held_out = {}};
  const auto start = [&](float scale) {
    FeatureSet features = init_features(plan, {.map = FeatureMap::kPrf});
    features.coordinates.kind = Coordinates::kBalanced;
    const int64_t heads = config.kv_heads, size = config.head_size;
    for (int64_t layer = 0; layer < config.layers; ++layer) {
      Tensor map = Tensor::zeros({heads, size, size});
      for (int64_t i = 0; i < heads * size; ++i) map.data<float>()[i * size + i % size] = scale;
      features.coordinates.layers.push_back({map, Tensor::zeros({heads, size})});
    }
    DistillOptions options;
    options.plan = StudentFeatures{plan, features};
    options.recipe = make_recipe({.features = FeatureMap::kPrf});
    return distill_settings(checkpoint, text, options)["start"];
  };
  EXPECT_EQ(start(1), start(1));
  EXPECT_NE(start(1), start(2));
}

// A layer that keeps its softmax attention takes what was measured of it out of the plan, and of
// the others none.
TEST(Distill, WhatAKeptLayerDoesNotGetGoesToTheOthers) {
  const Checkpoint checkpoint(fs::path(DOFLA_SOURCE_DIR) / "tests/models/stories260K");
  std::vector<TokenIds> text;
  for (int64_t b = 0; b < 6; ++b) {
    TokenIds& window = text.emplace_back();
    for (int64_t t = 0; t < 48; ++t) window.push_back(3 + (b * 977 + t * 131 * (b + 1)) % 500);
  }
  DistillOptions options;
  options.recipe = make_recipe({.exact_keys = true, .steps = 0});
  options.exact = ExactKeys{.sinks = 1, .recent = 2, .block = 2};
  options.plan = AllocateOptions{.strategy = PlanStrategy::kSensitivity, .memory = 20'000};
  options.keep = {1};
  const Distilled made = distill(checkpoint, split_held_out(text, 2), options);

  SensitivityTable others = made.sensitivity.value();
  for (auto* rows : {&others.layers, &others.keys}) rows->erase(rows->begin() + 1);
  for (auto* rows : {&others.heads, &others.key_shares}) rows->erase(rows->begin() + 1);
  std::erase_if(others.recall.steps, [](const auto& step) { return step.layer == 1; });
  for (RecallOrder::Step& step : others.recall.steps) step.layer -= step.layer > 1 ? 1 : 0;
  --others.model.layers;
  const DimensionPlan expected =
      allocate(others, {.strategy = PlanStrategy::kSensitivity, .memory = 20'000});
  ASSERT_EQ(made.plan.exact.size(), expected.exact.size() + 1);
  EXPECT_TRUE(made.plan.exact[1].empty());
  for (size_t s = 0; s < expected.exact.size(); ++s) {
    const size_t layer = s + (s >= 1 ? 1 : 0);
    EXPECT_EQ(made.plan.exact[layer], expected.exact[s]) << layer;
    EXPECT_EQ(made.plan.heads[layer], expected.heads[s]) << layer;
  }
}

}  // namespace
}  // namespace dofla
