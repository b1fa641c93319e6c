#include "dofla/sensitivity/memory.h"

#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include "dofla/core/random.h"
#include "dofla/sensitivity/allocate.h"
#include "dofla/sensitivity/hybrid_loss.h"
#include "tests/support/expect_error.h"
#include "tests/support/sensitivity_table.h"

namespace dofla {
namespace {

constexpr int64_t kKey = 2 * 8 * 2 + 4;        // of the one key head
constexpr int64_t kFeature = 2 * 4 * (8 + 2);  // of both heads
constexpr int64_t kLeast = 2 * (4 * kKey + kFeature);

double sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

DimensionPlan by_layer(const SensitivityTable& table, int64_t memory, int64_t least = 1) {
  return allocate_memory(table, {.memory = memory, .least = least, .by = PlanUnit::kLayer});
}

DimensionPlan plan_with(const SensitivityTable& table, const std::vector<int64_t>& keys,
                        const std::vector<int64_t>& features) {
  DimensionPlan plan = fixed_plan(table.model, 1, table.feature_heads);
  plan.heads = same_for_all_heads(features, table.heads_in_layer());
  plan.key_heads = table.key_heads;
  for (const int64_t K : keys) {
    plan.exact.push_back(table.exact);
    plan.exact.back().keys = K;
  }
  return plan;
}

TEST(HybridLoss, IsTheCachesLossTimesWhatFeaturesLeave) {
  const SensitivityTable table = test::small_hybrid_sensitivity();
  const HybridLoss loss(table, 0);
  EXPECT_NEAR(loss.at(4, 0), 1.0, 1e-12);
  EXPECT_NEAR(loss.at(8, 0), 0.4, 1e-12);
  EXPECT_EQ(loss.at(16, 0), 0);  // nothing leaves
  EXPECT_NEAR(loss.at(8, 8), 0.2, 1e-12);
  EXPECT_NEAR(loss.at(4, 8), 1.0 * (0.2 / 0.4), 1e-12);
  EXPECT_NEAR(loss.at(8, 1), 0.4, 1e-12);  // fewer features than the ladder: no gain, no harm
  // Two features alone do harm, 0.8 above 0.4, which counts as none; eight halve the loss: the
  // line between, on a logarithm.
  EXPECT_NEAR(loss.at(8, 2), 0.4 * (1 - 0.5 / 3), 1e-12);
}

TEST(HybridLoss, OfALayerThatACacheDoesNotHarmIsNothing) {
  SensitivityTable table = test::small_hybrid_sensitivity();
  table.keys[0] = {-0.01, 0};
  const HybridLoss loss(table, 0);
  EXPECT_EQ(loss.at(4, 1), 0);
  EXPECT_EQ(loss.at(8, 8), 0);
}

TEST(AllocateMemory, SpendsWithoutGoingOver) {
  const SensitivityTable table = test::small_hybrid_sensitivity();
  double before = std::numeric_limits<double>::infinity();
  for (int64_t memory = kLeast; memory < kLeast + 1500; memory += 50) {
    const DimensionPlan plan = by_layer(table, memory);
    EXPECT_LE(plan.state_bytes(), memory);
    for (size_t layer = 0; layer < 2; ++layer) {
      EXPECT_GE(plan.exact[layer].keys, 4);
      EXPECT_LE(plan.exact[layer].keys, 14);  // a block leaves a window of 16
      EXPECT_EQ(plan.heads[layer][0], plan.heads[layer][1]);
    }
    const bool all_keys = plan.exact[0].keys == 14 && plan.exact[1].keys == 14;
    if (!all_keys) {
      EXPECT_GT(plan.state_bytes(), memory - std::max(2 * kKey, kFeature));
    }
    const double predicted = sum(predicted_loss(table, plan));
    EXPECT_LE(predicted, before + 0.02);  // a larger step may come first now
    before = predicted;
  }
}

TEST(AllocateMemory, TheLeastIsTheLeast) {
  const SensitivityTable table = test::small_hybrid_sensitivity();
  const DimensionPlan plan = by_layer(table, kLeast);
  EXPECT_EQ(plan.state_bytes(), kLeast);
  EXPECT_EQ(plan.exact[0].keys, 4);
  EXPECT_EQ(plan.heads, (std::vector<std::vector<int64_t>>{{1, 1}, {1, 1}}));
  EXPECT_EQ(plan.strategy, PlanStrategy::kSensitivity);
  EXPECT_EQ(plan.by, PlanUnit::kLayer);
  EXPECT_EQ(by_layer(table, kLeast + 4 * kFeature, 3).heads[1][0], 3);
  test::expect_error(
      [&] { by_layer(table, kLeast - 1); },
      {"a memory of 447 bytes a sequence is too little", "448 bytes", "are needed at least"});
  test::expect_error([&] { by_layer(table, kLeast, 2); }, {"4 exact keys and 2 features a head"});
}

TEST(AllocateMemory, EnoughKeepsAllKeysButABlock) {
  const SensitivityTable table = test::small_hybrid_sensitivity();
  const DimensionPlan plan = by_layer(table, 1'000'000);
  EXPECT_EQ(plan.exact[0].keys, 14);
  EXPECT_EQ(plan.exact[1].keys, 14);
  EXPECT_LT(sum(predicted_loss(table, plan)),
            0.1 * sum(predicted_loss(table, plan_with(table, {14, 14}, {1, 1}))));
}

// Where no byte is predicted to save anything, keys are shared evenly and features not bought.
TEST(AllocateMemory, SharesWhatSavesNothing) {
  SensitivityTable table = test::small_hybrid_sensitivity();
  table.keys = {{0, 0}, {0, 0}};
  const DimensionPlan plan = by_layer(table, kLeast + 8 * kKey);
  EXPECT_EQ(plan.exact[0].keys, 8);
  EXPECT_EQ(plan.exact[1].keys, 8);
  EXPECT_EQ(plan.mean(), 1);
}

// Against all plans of two layers, keys in blocks.
TEST(AllocateMemory, IsNearlyAsGoodAsTryingEverything) {
  Random random(5);
  for (int trial = 0; trial < 20; ++trial) {
    SensitivityTable table = test::small_hybrid_sensitivity();
    for (size_t layer = 0; layer < 2; ++layer) {
      const double scale = std::exp(random.normal());
      table.keys[layer] = {scale, scale * (0.2 + 0.6 * random.uniform())};
      const double alone = table.keys[layer][1];
      table.layers[layer] = {alone * random.uniform(), 0};
      table.layers[layer][1] = table.layers[layer][0] * random.uniform();
    }
    const int64_t memory = kLeast + 500;
    double best = std::numeric_limits<double>::infinity();
    for (int64_t k0 = 4; k0 <= 14; k0 += 2)
      for (int64_t k1 = 4; k1 <= 14; k1 += 2)
        for (int64_t m0 = 1; m0 <= 20; ++m0)
          for (int64_t m1 = 1; m1 <= 20; ++m1)
            if ((k0 + k1) * kKey + (m0 + m1) * kFeature <= memory)
              best =
                  std::min(best, HybridLoss(table, 0).at(k0, m0) + HybridLoss(table, 1).at(k1, m1));
    const double found = sum(predicted_loss(table, by_layer(table, memory)));
    EXPECT_GE(found, best - 1e-12);
    EXPECT_LE(found, 1.2 * best) << trial;
  }
}

TEST(AllocateMemory, PredictsPlansMadeByHand) {
  const SensitivityTable table = test::small_hybrid_sensitivity();
  DimensionPlan plan = plan_with(table, {8, 4}, {8, 8});
  EXPECT_NEAR(predicted_loss(table, plan)[0], 0.2, 1e-12);
  EXPECT_NEAR(predicted_loss(table, plan)[1], 0.2 * 0.5, 1e-12);
  plan.heads[1].clear();  // a cache alone
  EXPECT_NEAR(predicted_loss(table, plan)[1], 0.2, 1e-12);
  plan.exact[1] = {};  // softmax attention
  EXPECT_EQ(predicted_loss(table, plan)[1], 0);
}

// Four key heads, of which one alone loses anything: it gets the memory, the others the least.
TEST(AllocateMemory, ByHeadGoesToTheHeadThatNeedsIt) {
  SensitivityTable table = test::small_hybrid_sensitivity();
  table.model.heads = 4;
  table.key_heads = 4;
  table.length = 64;
  const SensitivityTable::Curve none = {0, 0};
  table.key_shares = {{none, table.keys[0], none, none}, {none, none, none, none}};
  table.heads = {{4, {0, 0}}, {4, {0, 0}}};
  table.heads[0][1] = table.layers[0];
  const int64_t head = 2 * 8 * 2 + 4, memory = 8 * (4 * head + 40) + 20 * head;
  const DimensionPlan plan = allocate_memory(table, {.memory = memory});
  EXPECT_EQ(plan.by, PlanUnit::kHead);
  EXPECT_LE(plan.state_bytes(), memory);
  const std::vector<int64_t>& keys = plan.exact[0].head_keys;
  ASSERT_EQ(keys.size(), 4U);
  EXPECT_GE(keys[1], 14);
  EXPECT_EQ(plan.exact[0].keys, keys[1]);
  for (const size_t other : {0, 2, 3}) EXPECT_LE(keys[other], 6);
  EXPECT_EQ(to_json(plan)["exact_keys"][0]["keys"], Json(keys));
  // What is predicted is the sum over heads.
  EXPECT_NEAR(predicted_loss(table, plan)[0], HybridLoss(table, 0, 1).at(keys[1], plan.heads[0][1]),
              1e-12);
}

// A head that lost nothing on the few windows that were measured has keys all the same.
TEST(AllocateMemory, NoHeadHasLessThanAQuarterOfAnEqualShare) {
  SensitivityTable table = test::small_hybrid_sensitivity();
  table.length = 256;
  table.keys = {{1, 0.4}, {0, 0}};
  for (const int64_t share : {4, 15, 16, 32, 64}) {
    const int64_t memory = 2 * (share * kKey + kFeature);
    ASSERT_EQ(keys_that_fit(table, memory, 1), share);
    const std::vector<ExactKeys> exact = by_layer(table, memory).exact;
    EXPECT_GE(exact[1].keys, share / 4) << share;
    EXPECT_GE(exact[0].keys, exact[1].keys) << share;
    EXPECT_EQ((exact[1].keys - 4) % table.exact.block, 0) << share;
  }
}

TEST(AllocateMemory, NoHeadHasMoreThanCanBePlanned) {
  SensitivityTable table = test::small_hybrid_sensitivity();
  table.length = 10'000;
  for (const ExactKeys& exact : by_layer(table, 1'000'000'000).exact)
    EXPECT_EQ(exact.keys, kMostPlannedKeys);
}

// Two heads of a layer: ordinary text needs the keys of the first, repeated text those of the
// other.
TEST(AllocateMemory, RecallGoesToTheHeadThatLooksFarBack) {
  SensitivityTable table = test::small_recall_sensitivity();
  table.key_heads = 2;
  table.length = 64;
  const SensitivityTable::Curve none = {0, 0};
  table.key_shares = {{table.keys[0], none}, {none, none}};
  table.recall.steps = {{0, 1, 8, 5}, {0, 0, 8, 0}, {1, 1, 8, -1}, {1, 0, 8, 0}};
  const int64_t memory = 4 * (4 * kKey + kFeature / 2) + 30 * kKey;
  const auto keys = [&](std::optional<double> recall) {
    return allocate_memory(table, {.memory = memory, .recall_share = recall}).exact[0].head_keys;
  };
  EXPECT_LT(keys(0.0)[1], 8);
  EXPECT_GT(keys(0.0)[0], 2 * keys(0.0)[1]);
  EXPECT_LT(keys(1.0)[0], 8);
  EXPECT_GT(keys(1.0)[1], 2 * keys(1.0)[0]);
  EXPECT_EQ(keys({}), keys(kRecallShare));
  const DimensionPlan plan = allocate_memory(table, {.memory = memory, .recall_share = 1.0});
  EXPECT_LE(plan.state_bytes(), memory);
  const std::vector<double> recall = predicted_recall(table, plan);
  EXPECT_NEAR(recall[0], 5.0 * static_cast<double>(64 - keys(1.0)[1]) / (64 - 8), 1e-12);
  EXPECT_EQ(recall[1], 0);
  EXPECT_TRUE(predicted_recall(test::small_hybrid_sensitivity(), plan).empty());
}

TEST(RecallOrder, HeadsThatSaveMoreTogetherShareIt) {
  RecallOrder order;
  order.steps = {{1, 0, 6, 1}, {0, 1, 6, 4}, {0, 0, 14, 1}, {1, 1, 6, -2}};
  // A window of 16 tokens: 10 of them are lacking, or 2.
  EXPECT_EQ(order.added_a_token(2, 2, 16),
            (std::vector<std::vector<double>>{{0.5, 0.25}, {0.25, 0}}));
  EXPECT_EQ(RecallOrder{}.added_a_token(1, 2, 16), (std::vector<std::vector<double>>{{0, 0}}));
}

TEST(AllocateMemory, RecallIsKnownOrRefused) {
  const SensitivityTable unknown = test::small_hybrid_sensitivity();
  EXPECT_EQ(allocate_memory(unknown, {.memory = 1000}).heads,
            allocate_memory(unknown, {.memory = 1000, .recall_share = 0.0}).heads);
  test::expect_error([&] { allocate_memory(unknown, {.memory = 1000, .recall_share = 0.1}); },
                     {"the sensitivity says nothing of recall"});
  for (const double share : {-0.1, 1.1, std::numeric_limits<double>::quiet_NaN()})
    EXPECT_THROW(
        allocate_memory(test::small_recall_sensitivity(), {.memory = 1000, .recall_share = share}),
        std::invalid_argument);
  EXPECT_THROW(allocate(test::small_recall_sensitivity(),
                        {.strategy = PlanStrategy::kSensitivity, .cost = 4, .recall_share = 0.1}),
               std::invalid_argument);
}

TEST(AllocateMemory, RefusesWhatItCannotDo) {
  const SensitivityTable table = test::small_hybrid_sensitivity();
  test::expect_error([&] { by_layer(test::small_sensitivity(), 1'000'000); },
                     {"measure it for one"});
  AllocateOptions options = {.strategy = PlanStrategy::kSensitivity, .memory = 1000};
  EXPECT_EQ(allocate(table, options).heads, allocate_memory(table, {.memory = 1000}).heads);
  options.cost = 4;
  EXPECT_THROW(allocate(table, options), std::invalid_argument);
  options.cost = {};
  options.by = PlanUnit::kLayer;
  EXPECT_EQ(to_json(allocate(table, options)), to_json(by_layer(table, 1000)));
}

}  // namespace
}  // namespace dofla
