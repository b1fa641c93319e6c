#include "dofla/distill/calibrate.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "dofla/distill/layer_target.h"
#include "dofla/distill/pair_init.h"
#include "dofla/distill/train.h"
#include "dofla/plan/allocate.h"
#include "tests/support/fixtures.h"

namespace dofla {
namespace {

class Calibration : public testing::Test {
 protected:
  const Checkpoint checkpoint{fs::path(DOFLA_SOURCE_DIR) / "tests/models/stories260K"};
  const Transformer teacher{checkpoint};
  const Tensor ids = some_text();

  static Tensor some_text() {
    Tensor text({2, 70}, DType::kI64);
    for (int64_t i = 0; i < text.count(); ++i) text.data<int64_t>()[i] = 3 + i * 131 % 500;
    return text;
  }
  // Drawn features beside 24 exact keys; one layer has none beside it, and one no features.
  FeatureSet start(uint64_t seed) const {
    const ModelConfig& config = teacher.config();
    DimensionPlan plan = fixed_plan(identity_of(config), 6, config.kv_heads);
    plan.exact.assign(static_cast<size_t>(config.layers), {.keys = 24});
    plan.key_heads = config.kv_heads;
    plan.exact[1] = {};
    plan.heads[2].clear();
    PairSampler pairs(plan, 1, seed);
    teacher.forward(ids.slice(0, 1), {.state = nullptr, .observer = pairs.observer()});
    return pairs.features(FeatureMap::kUntied);
  }
  // Of the output, on all windows, [heads with features].
  std::vector<double> errors(const FeatureSet& set, size_t layer, bool cut = false) const {
    Features features = set.layers[layer];
    std::vector<double> sums(features.counts.size(), 0);
    if (cut) {
      features.log_alpha = features.log_alpha.clone();
      for (int64_t m = 0; m < features.total(); ++m) features.log_alpha.data<float>()[m] = -1000;
    }
    ForwardOptions forward;
    forward.observer = [&](int64_t at, const Tensor& q, const Tensor& k, const Tensor& v) {
      if (static_cast<size_t>(at) != layer) return;
      const std::vector<double> found =
          LayerTarget(q, k, v, exact_keys_of(set.exact, layer), OutputLoss{})
              .output_errors(features);
      for (size_t h = 0; h < found.size(); ++h) sums[h * sums.size() / found.size()] += found[h];
    };
    teacher.forward(ids, forward);
    return sums;
  }
};

// On the text that chooses, no head is further off than before or than its keys alone.
TEST_F(Calibration, IsNeverWorseThanTheKeysAlone) {
  std::vector<FeatureSet> sets = {start(7), start(8)};
  // Weights that are far too large, which the start would not give.
  for (int64_t m = 0; m < sets[1].layers[0].total(); ++m)
    sets[1].layers[0].log_alpha.data<float>()[m] += 3;
  const std::vector<FeatureSet> before = {sets[0].clone(), sets[1].clone()};
  calibrate(teacher, ids, sets);
  bool better = false;
  for (size_t i = 0; i < sets.size(); ++i)
    for (const size_t layer : {size_t{0}, size_t{3}, size_t{4}}) {
      const std::vector<double> found = errors(sets[i], layer), was = errors(before[i], layer),
                                alone = errors(before[i], layer, true);
      for (size_t h = 0; h < found.size(); ++h) {
        EXPECT_LE(found[h], was[h] * (1 + 1e-6)) << "layer " << layer << " head " << h;
        EXPECT_LE(found[h], alone[h] * (1 + 1e-6)) << "layer " << layer << " head " << h;
        better = better || found[h] < 0.99 * alone[h];
      }
    }
  EXPECT_TRUE(better);
}

// Every head has a shift of its own among kShifts, whatever else there is stays as it was, and sets
// do not meet.
TEST_F(Calibration, ShiftsTheWeightsOfEveryHeadAndNothingElse) {
  std::vector<FeatureSet> both = {start(7), start(8)}, one = {start(7)};
  const FeatureSet before = start(7);
  calibrate(teacher, ids, both);
  calibrate(teacher, ids, one);
  const auto values = [](const Tensor& x) {
    return std::vector<float>(x.data<float>(), x.data<float>() + x.count());
  };
  for (size_t layer = 0; layer < before.layers.size(); ++layer) {
    const Features &now = both[0].layers[layer], &was = before.layers[layer];
    ASSERT_EQ(now.counts, was.counts);
    if (now.empty()) continue;
    EXPECT_EQ(values(now.z), values(was.z));
    EXPECT_EQ(values(now.log_alpha), values(one[0].layers[layer].log_alpha));
    if (exact_keys_of(before.exact, layer).empty()) {
      EXPECT_EQ(values(now.log_alpha), values(was.log_alpha)) << "linear attention alone";
      continue;
    }
    for (int64_t head = 0, m = 0; head < now.heads(); ++head) {
      const auto shift = [&](int64_t i) {
        return now.log_alpha.data<float>()[i] - was.log_alpha.data<float>()[i];
      };
      const double first = shift(m);
      EXPECT_TRUE(std::ranges::any_of(
          kShifts, [&](double known) { return std::abs(known - first) < 1e-4; }));
      for (const int64_t end = m + now.counts[static_cast<size_t>(head)]; m < end; ++m)
        EXPECT_NEAR(shift(m), first, 1e-4);
    }
  }
}

// Training on the output alone gets below the keys alone, too.
TEST_F(Calibration, TheOutputLossFallsBelowThatOfExactKeysAlone) {
  const FeatureSet first = start(7);
  FeatureSet none = first.clone();
  for (Features& layer : none.layers)
    for (int64_t m = 0; m < layer.total(); ++m) layer.log_alpha.data<float>()[m] = -1000;
  const Objective objective = layerwise_objective(teacher, OutputLoss{});
  TrainOptions how;
  how.steps = 60;
  how.lr_norm = 0.03;
  FeatureTrainer trainer(first, objective, how), keys_alone(none, objective, how);
  for (int64_t i = 0; i < how.steps; ++i) trainer.step(ids);
  keys_alone.step(ids);
  for (const size_t layer : {size_t{0}, size_t{3}, size_t{4}})
    EXPECT_LT(trainer.history().loss.back()[layer], keys_alone.history().loss.front()[layer])
        << "layer " << layer;
}

TEST_F(Calibration, ChoosesByWindowsThatTrainingHasNotReadYet) {
  std::vector<TokenIds> windows;
  for (int64_t i = 0; i < 40; ++i) windows.push_back({i, i + 1});
  const WindowSet text(windows);
  ShuffledBatches batches(text, 3, 5);
  std::vector<int64_t> read;
  for (int64_t step = 0; step < 4; ++step)
    for (int64_t b = 0; b < 3; ++b) read.push_back(batches.at(step).data<int64_t>()[2 * b]);
  const Tensor chosen = windows_after(text, 12, 8, 5);
  ASSERT_EQ(chosen.size(0), 8);
  for (int64_t b = 0; b < 8; ++b)
    EXPECT_EQ(std::ranges::count(read, chosen.data<int64_t>()[2 * b]), 0);
}

}  // namespace
}  // namespace dofla
