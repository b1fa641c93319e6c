#include "dofla/distill/recipe.h"

#include <gtest/gtest.h>

namespace dofla {
namespace {

void expect_refused(const RecipeOptions& options, const std::string& part) {
  try {
    make_recipe(options);
    ADD_FAILURE() << "accepted; expected: " << part;
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(Recipe, FillsInWhatIsLeftOut) {
  const Recipe recipe = make_recipe();
  EXPECT_EQ(recipe.features, FeatureMap::kUntied);
  EXPECT_EQ(recipe.init, FeatureInit::kPairs);
  EXPECT_EQ(kind_of(recipe.loss), LossKind::kSoftmax);
  EXPECT_EQ(std::get<FeatureLossOptions>(recipe.loss).mask, PairMask::kCausal);
  EXPECT_EQ(recipe.train.steps, 400);
  EXPECT_EQ(recipe.train.lr_z, 0.05);
  EXPECT_EQ(recipe.train.lr_alpha, 0.2);
  EXPECT_EQ(recipe.train.lr_norm, 0.03);
  EXPECT_EQ(make_recipe({.lr_norm = 0.5}).train.lr_norm, 0.5);
  EXPECT_EQ(make_recipe({.features = FeatureMap::kPrf}).train.lr_norm, 0);
}

TEST(Recipe, BesideExactKeysTheOutputIsLearnt) {
  EXPECT_EQ(kind_of(make_recipe({.exact_keys = true}).loss), LossKind::kOutput);
  EXPECT_EQ(kind_of(make_recipe({.exact_keys = true, .loss = LossKind::kSoftmax}).loss),
            LossKind::kSoftmax);
  EXPECT_EQ(make_recipe({.exact_keys = true}).train.lr_z, 0.05);
  expect_refused({.exact_keys = true, .mask = PairMask::kCausal},
                 "mask has no effect: the output loss has no pairs to mask");
  EXPECT_THROW(layerwise(make_recipe({.loss = LossKind::kKl}).loss), std::invalid_argument);
}

TEST(Recipe, L2TakesSmallerSteps) {
  const Recipe recipe = make_recipe({.loss = LossKind::kL2});
  EXPECT_EQ(recipe.train.lr_z, 0.002);
  EXPECT_EQ(recipe.train.lr_alpha, 0.02);
  EXPECT_EQ(make_recipe({.loss = LossKind::kL2, .lr_z = 0.5}).train.lr_z, 0.5);
}

TEST(Recipe, EveryLossIsTheOneThatWasAskedFor) {
  for (const Name<LossKind>& known : Names<LossKind>::kAll)
    EXPECT_EQ(kind_of(make_recipe({.loss = known.value}).loss), known.value) << known.text;
  const Recipe full = make_recipe({.loss = LossKind::kAttentionMse, .mask = PairMask::kFull});
  EXPECT_EQ(std::get<FeatureLossOptions>(full.loss).mask, PairMask::kFull);
  const Recipe direct = make_recipe({.loss = LossKind::kDirect, .recompute = true});
  EXPECT_TRUE(std::get<DirectLoss>(direct.loss).recompute);
}

TEST(Recipe, BaselinesFollowTheirDefinitions) {
  EXPECT_EQ(make_recipe({.features = FeatureMap::kPerformer}).train.steps, 0);
  EXPECT_EQ(make_recipe({.features = FeatureMap::kPerformer, .steps = 0}).train.steps, 0);
  const Recipe dijiang = make_recipe({.features = FeatureMap::kDijiang, .steps = 7});
  EXPECT_EQ(kind_of(dijiang.loss), LossKind::kDirect);
  EXPECT_EQ(dijiang.train.steps, 7);
  EXPECT_EQ(dijiang.train.lr_z, 0);
  EXPECT_EQ(dijiang.train.lr_alpha, 0.02);
}

TEST(Recipe, RefusesWhatHasNoEffect) {
  constexpr FeatureMap kPerformer = FeatureMap::kPerformer, kDijiang = FeatureMap::kDijiang;
  expect_refused({.features = kPerformer, .steps = 2}, "steps 2 has no effect");
  expect_refused({.features = kPerformer, .loss = LossKind::kSoftmax}, "loss has no effect");
  expect_refused({.features = kPerformer, .mask = PairMask::kFull}, "mask has no effect");
  expect_refused({.features = kPerformer, .recompute = true}, "recompute has no effect");
  expect_refused({.features = kPerformer, .lr_z = 1}, "a learning rate has no effect");
  expect_refused({.features = kPerformer, .lr_alpha = 1}, "a learning rate has no effect");
  expect_refused({.features = kPerformer, .init = FeatureInit::kIid}, "init has no effect");
  expect_refused({.features = kDijiang, .init = FeatureInit::kPairs}, "init has no effect");
  expect_refused({.features = kDijiang, .loss = LossKind::kSoftmax}, "loss softmax has no effect");
  expect_refused({.features = kDijiang, .mask = PairMask::kFull}, "mask has no effect");
  expect_refused({.features = kDijiang, .lr_z = 1}, "learning rate of z has no effect");
  expect_refused({.features = FeatureMap::kPrf, .lr_norm = 1}, "learning rate of η has no effect");
  expect_refused({.loss = LossKind::kDirect, .mask = PairMask::kCausal}, "mask has no effect");
  expect_refused({.loss = LossKind::kL2, .recompute = true}, "recompute has no effect");
}

}  // namespace
}  // namespace dofla
