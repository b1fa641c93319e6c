#include "dofla/distill/train.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include <gtest/gtest.h>

#include "dofla/distill/pair_init.h"
#include "dofla/distill/training_file.h"
#include "dofla/plan/allocate.h"
#include "tests/support/expect_error.h"
#include "tests/support/fixtures.h"

namespace dofla {
namespace {

class LayerwiseTraining : public testing::Test {
 protected:
  // A trained model with grouped keys: what falls and what runs away does not hang on a fixture.
  const Checkpoint checkpoint{fs::path(DOFLA_SOURCE_DIR) / "tests/models/stories260K"};
  const Transformer teacher{checkpoint};
  const Objective layerwise = layerwise_objective(teacher, {});
  const Tensor ids = some_text();
  const Json run = {{"loss", "softmax"}, {"seed", 1}};

  static Tensor some_text() {
    Tensor text({2, 70}, DType::kI64);
    for (int64_t i = 0; i < text.count(); ++i) text.data<int64_t>()[i] = 3 + i * 131 % 500;
    return text;
  }
  FeatureSet start(int64_t cost = 6, FeatureMap map = FeatureMap::kPrf) const {
    const ModelConfig& config = teacher.config();
    const int64_t heads = feature_heads(map, config.heads, config.kv_heads);
    PairSampler pairs(fixed_plan(identity_of(config), cost, heads), 1, 7);
    teacher.forward(ids.slice(0, 1), {.state = nullptr, .observer = pairs.observer()});
    return pairs.features(map);
  }
  static TrainOptions options(int64_t steps) {
    TrainOptions how;
    how.steps = steps;
    return how;
  }
};

void expect_same(const FeatureSet& a, const FeatureSet& b) {
  ASSERT_EQ(a.counts(), b.counts());
  const auto same = [](const Tensor& x, const Tensor& y) {
    return std::memcmp(x.raw(), y.raw(), static_cast<size_t>(x.bytes())) == 0;
  };
  for (size_t i = 0; i < a.layers.size(); ++i) {
    const auto of_a = feature_parts(a.layers[i]);
    const auto of_b = feature_parts(b.layers[i]);
    for (size_t part = 0; part < of_a.size(); ++part) {
      ASSERT_EQ(of_a[part].second->defined(), of_b[part].second->defined());
      if (!of_a[part].second->defined()) continue;
      EXPECT_TRUE(same(*of_a[part].second, *of_b[part].second))
          << "layer " << i << ", " << of_a[part].first;
    }
  }
}

TEST_F(LayerwiseTraining, EveryObjectiveFalls) {
  for (const FeatureMap map : {FeatureMap::kPrf, FeatureMap::kUntied})
    for (const auto kind :
         {FeatureLossKind::kSoftmax, FeatureLossKind::kL2, FeatureLossKind::kAttentionMse})
      for (const auto mask : {PairMask::kCausal, PairMask::kFull}) {
        TrainOptions how = options(60);
        how.lr_z = 0.002;
        how.lr_alpha = 0.02;
        if (is_untied(map)) how.lr_norm = 0.002;
        FeatureTrainer trainer(start(6, map),
                               layerwise_objective(teacher, FeatureLossOptions{kind, mask}), how);
        for (int64_t i = 0; i < how.steps; ++i) trainer.step(ids);
        const TrainingHistory& history = trainer.history();
        EXPECT_TRUE(history.skipped.empty());
        for (size_t layer = 0; layer < history.loss.front().size(); ++layer)
          EXPECT_LT(history.loss.back()[layer], history.loss.front()[layer])
              << name(map) << ", loss " << static_cast<int>(kind) << " layer " << layer;
      }
}

// The same gradients at every step, and losses as told.
Objective scripted(std::vector<double> losses) {
  Objective objective;
  objective.run = [losses, step = size_t{0}](const Tensor&, const FeatureSet& features,
                                             const Objective::Take& take) mutable {
    for (size_t i = 0; i < features.layers.size(); ++i) {
      const Features& layer = features.layers[i];
      FeatureLoss loss = {Tensor({layer.heads()}, DType::kF64),
                          {Tensor(layer.z.shape()), Tensor(layer.log_alpha.shape())}};
      std::fill_n(loss.per_head.data<double>(), loss.per_head.count(), losses[step]);
      std::fill_n(loss.grad.z.data<float>(), loss.grad.z.count(), 1.0f);
      std::fill_n(loss.grad.log_alpha.data<float>(), loss.grad.log_alpha.count(), -1.0f);
      take(static_cast<int64_t>(i), loss);
    }
    ++step;
  };
  return objective;
}

// Under a gradient that never changes, a step of Adam is the learning rate in every element: what
// is left of the rates shows in how far z and log α go.
TEST_F(LayerwiseTraining, LearningRatesFallLinearlyToZero) {
  TrainOptions how = options(4);
  how.lr_z = 0.5;
  how.lr_alpha = 0.25;
  FeatureTrainer trainer(start(), scripted({1, 1, 1, 1}), how);
  for (const double left : {1.0, 0.75, 0.5, 0.25}) {
    const FeatureSet before = trainer.features().clone();
    trainer.step(ids);
    const Features &from = before.layers[1], &to = trainer.features().layers[1];
    const double z = to.z.data<float>()[5] - from.z.data<float>()[5];
    const double alpha = to.log_alpha.data<float>()[5] - from.log_alpha.data<float>()[5];
    EXPECT_NEAR(z, -left * 0.5, 1e-5);
    EXPECT_NEAR(alpha, left * 0.25, 1e-5);
  }
}

// Ten steps above ten times the first loss, all of them finite.
TEST_F(LayerwiseTraining, ALossThatRunsAwayIsTold) {
  std::vector<double> losses(11, 11.0);
  losses[0] = 1;
  FeatureTrainer trainer(start(), scripted(losses), options(20));
  for (int64_t i = 0; i < 10; ++i) trainer.step(ids);  // their mean is 10 times the first
  test::expect_error([&] { trainer.step(ids); }, {"layer 1", "has grown from 1 to 11"});
}

TEST_F(LayerwiseTraining, AResumedRunEndsInTheSameBits) {
  for (const FeatureMap map : {FeatureMap::kPrf, FeatureMap::kUntied}) {
    const test::ScratchFolder scratch;
    const fs::path file = scratch.path() / "run.training";
    TrainOptions how = options(8);
    if (is_untied(map)) how.lr_norm = 0.01;
    FeatureTrainer whole(start(6, map), layerwise, how);
    for (int64_t i = 0; i < 8; ++i) {
      whole.step(ids);
      if (i == 4) whole.save(file, run);
    }
    FeatureTrainer resumed(start(6, map), layerwise, how);
    resumed.restore(file, run);
    EXPECT_EQ(resumed.steps_done(), 5);
    while (resumed.steps_done() < 8) resumed.step(ids);
    expect_same(resumed.features(), whole.features());
    EXPECT_EQ(resumed.history().loss, whole.history().loss);
  }
}

// Everything that untied features have learns: query heads of a group come apart, η leaves 1.
TEST_F(LayerwiseTraining, UntiedFeaturesComeApart) {
  TrainOptions how = options(3);
  how.lr_norm = 0.01;
  FeatureTrainer trainer(start(6, FeatureMap::kUntied), layerwise, how);
  for (int64_t i = 0; i < 3; ++i) trainer.step(ids);
  const Features& layer = trainer.features().layers[1];
  ASSERT_EQ(layer.heads(), teacher.config().kv_heads);
  ASSERT_GT(layer.group(), 1);
  for (int64_t i = 0; i < layer.heads(); ++i) EXPECT_NE(layer.norm_weight.data<float>()[i], 1);
  const float* u = layer.u.data<float>();
  const float* z = layer.z.data<float>();
  const int64_t rows = 6 * layer.z.size(1);
  EXPECT_FALSE(std::equal(u, u + rows, u + rows)) << "two query heads are the same";
  EXPECT_FALSE(std::equal(u, u + rows, z)) << "queries are as keys";
}

// Layers that keep their softmax attention are left alone; the others learn what they learn beside
// linear ones, also after an interruption.
TEST_F(LayerwiseTraining, LayersWithoutFeaturesAreLeftAlone) {
  DimensionPlan plan = fixed_plan(identity_of(teacher.config()), 6);
  for (size_t layer = 0; layer < plan.heads.size(); layer += 2) plan.heads[layer].clear();
  PairSampler pairs(plan, 1, 7);
  teacher.forward(ids.slice(0, 1), {.state = nullptr, .observer = pairs.observer()});
  const FeatureSet mixed = pairs.features();
  EXPECT_EQ(mixed.counts(), plan.heads);

  FeatureTrainer all(start(), layerwise, options(3)), some(mixed, layerwise, options(3));
  const test::ScratchFolder folder;
  for (int64_t i = 0; i < 3; ++i) {
    all.step(ids);
    some.step(ids);
    if (i == 0) some.save(folder.path() / "checkpoint", run);
  }
  FeatureTrainer resumed(mixed, layerwise, options(3));
  resumed.restore(folder.path() / "checkpoint", run);
  for (int64_t i = 1; i < 3; ++i) resumed.step(ids);
  for (const FeatureTrainer* trainer : {&some, &resumed})
    for (size_t layer = 0; layer < plan.heads.size(); ++layer) {
      const Features& found = trainer->features().layers[layer];
      const bool kept = layer % 2 == 0;
      EXPECT_EQ(found.empty(), kept);
      EXPECT_EQ(trainer->history().loss.back()[layer], kept ? 0 : all.history().loss.back()[layer]);
      if (kept) continue;
      const Features& expected = all.features().layers[layer];
      EXPECT_EQ(std::memcmp(found.z.raw(), expected.z.raw(), static_cast<size_t>(found.z.bytes())),
                0);
    }
}

TEST_F(LayerwiseTraining, AnotherRunsCheckpointIsRefusedByTheSettingThatDiffers) {
  const test::ScratchFolder scratch;
  const fs::path file = scratch.path() / "run.training";
  FeatureTrainer trainer(start(), layerwise, options(2));
  trainer.step(ids);
  trainer.save(file, run);
  EXPECT_EQ(read_run(file), run);
  const Json other = {{"loss", "softmax"}, {"seed", 2}};
  test::expect_error([&] { trainer.restore(file, other); }, {"run.training", "seed", "1", "2"});
  trainer.save(file, {{"device", "cuda"}});
  test::expect_error(
      [&] {
        trainer.restore(file, {{"device", "cpu"}});
      },
      {"run.training", "began on cuda, this is cpu", "resume it on cuda"});
  trainer.save(file, run);
  fs::resize_file(file, fs::file_size(file) / 2);
  test::expect_error([&] { trainer.restore(file, run); }, {"run.training"});
}

// Whichever bit it is: of lengths, names, settings, weights or the checksum itself.
TEST_F(LayerwiseTraining, ACheckpointWithAFlippedBitIsRefused) {
  const test::ScratchFolder scratch;
  const fs::path file = scratch.path() / "run.training";
  FeatureTrainer trainer(start(), layerwise, options(2));
  trainer.step(ids);
  trainer.save(file, run);
  trainer.restore(file, run);
  const std::string whole = read_text(file);
  for (size_t at = 0; at < whole.size(); at += 1 + whole.size() / 211) {
    std::string flipped = whole;
    flipped[at] = static_cast<char>(flipped[at] ^ (1 << at % 8));
    write_whole(file, flipped);
    test::expect_error([&] { trainer.restore(file, run); }, {"run.training"});
  }
}

TEST_F(LayerwiseTraining, ACheckpointWithOtherShapesIsRefused) {
  const test::ScratchFolder scratch;
  const fs::path file = scratch.path() / "run.training";
  FeatureTrainer(start(6), layerwise, options(2)).save(file, run);
  FeatureTrainer other(start(5), layerwise, options(2));
  test::expect_error([&] { other.restore(file, run); }, {"run.training", "expected", "found"});
}

TEST_F(LayerwiseTraining, ARunawayLayerIsNamedAndItsFeaturesKept) {
  TrainOptions how = options(200);
  how.lr_z = 1000;
  how.lr_alpha = 1000;
  FeatureTrainer trainer(start(), layerwise, how);
  FeatureSet before;
  const auto train = [&] {
    while (trainer.steps_done() < how.steps) {
      before = trainer.features().clone();
      trainer.step(ids);
    }
  };
  test::expect_error(train, {"layer ", "lower the learning rates"});
  expect_same(trainer.features(), before);
}

TEST_F(LayerwiseTraining, AStepThatIsNotFiniteIsSkippedAndNamed) {
  FeatureSet broken = start();
  const int64_t at = broken.layers[1].offsets()[1] * teacher.config().head_size;
  broken.layers[1].z.data<float>()[at] = std::numeric_limits<float>::infinity();
  FeatureTrainer trainer(broken, layerwise, options(2));
  trainer.step(ids);
  ASSERT_EQ(trainer.history().skipped.size(), 1u);
  EXPECT_EQ(trainer.history().skipped[0].step, 0);
  EXPECT_EQ(trainer.history().skipped[0].layer, 1);
  EXPECT_EQ(trainer.history().skipped[0].head, 1);
  EXPECT_TRUE(std::isnan(trainer.history().loss[0][1]));
  EXPECT_TRUE(std::isfinite(trainer.history().loss[0][0]));
}

TEST_F(LayerwiseTraining, FeaturesForAnotherModelAreRefused) {
  FeatureSet short_set = start();
  short_set.layers.pop_back();
  EXPECT_THROW(FeatureTrainer(short_set, layerwise, options(1)).step(ids), std::invalid_argument);
}

}  // namespace
}  // namespace dofla
