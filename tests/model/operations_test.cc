#include "dofla/model/operations.h"

#include <gtest/gtest.h>

#include "dofla/linear/linear_model.h"
#include "tests/support/fixtures.h"
#include "tests/support/linear_fixture.h"

namespace dofla {
namespace {

// Counts what one decoded token multiplies and reads, head by head.
struct Counted {
  double products = 0;  // each with its addition
  int64_t bytes = 0;

  void softmax(const ModelConfig& config, const std::vector<int64_t>& keys) {
    for (int64_t head = 0; head < config.heads; ++head) {
      const int64_t key_head = head * config.kv_heads / config.heads;
      const auto of_head = static_cast<double>(keys[static_cast<size_t>(key_head)]);
      products += of_head * static_cast<double>(config.head_size);  // q·k
      products += of_head * static_cast<double>(config.head_size);  // p·v
    }
    for (const int64_t of_head : keys) bytes += of_head * 2 * config.head_size * 2;  // k and v
  }
  void scores(const std::vector<int64_t>& keys) {
    for (const int64_t of_head : keys) bytes += of_head * 4;
  }
  void features(const ModelConfig& config, const std::vector<int64_t>& counts) {
    const int64_t group = config.heads / std::ssize(counts);
    for (const int64_t M : counts) {
      const auto rows = static_cast<double>(M * config.head_size);
      products += rows;                                      // the features of the key
      products += rows;                                      // their product with the value
      for (int64_t i = 0; i < group; ++i) products += rows;  // the features of a query
      for (int64_t i = 0; i < group; ++i) products += rows;  // their product with the sums
      bytes += M * 4 + M * 4 + M * config.head_size * 4;     // a maximum, a sum, a row of sums
    }
  }
};

void expect(const TokenCost& found, const Counted& wanted, size_t layer) {
  EXPECT_EQ(found.bytes, wanted.bytes) << "layer " << layer;
  EXPECT_EQ(found.operations, 2 * wanted.products) << "layer " << layer;
}

// Grouped keys and not, a state a query head and a state a key head, ragged in keys and features;
// the last layer has exact keys alone.
TEST(TokenCost, IsWhatOneTokenMultipliesAndReads) {
  for (const char* name : {"gpt2", "llama"})
    for (const FeatureMap map : {FeatureMap::kPrf, FeatureMap::kUntied}) {
      const Checkpoint checkpoint(test::fixtures() / name);
      const ModelConfig& config = checkpoint.config();
      const FeatureSet features = test::hybrid_features(config, map);
      int64_t bytes = 0;
      for (size_t layer = 0; layer < features.layers.size(); ++layer) {
        std::vector<int64_t> keys;
        for (int64_t h = 0; h < config.kv_heads; ++h)
          keys.push_back(features.exact[layer].of_head(h).keys);
        Counted counted;
        counted.softmax(config, keys);
        counted.scores(keys);
        if (!features.layers[layer].empty())
          counted.features(config, features.layers[layer].counts);
        expect(token_cost(features, config, layer, 1000), counted, layer);
        bytes += counted.bytes;
      }
      EXPECT_EQ(state_bytes(features, config), bytes);
    }
}

TEST(TokenCost, OfSoftmaxAttentionGrowsWithTheTokens) {
  const Checkpoint checkpoint(test::fixtures() / "llama");
  const ModelConfig& config = checkpoint.config();
  ASSERT_LT(config.kv_heads, config.heads);
  Counted counted;
  counted.softmax(config, std::vector<int64_t>(static_cast<size_t>(config.kv_heads), 700));
  expect(softmax_token_cost(config, 700), counted, 0);
  const FeatureSet mixed = test::mixed_features(config);  // whose first layer keeps it
  expect(token_cost(mixed, config, 0, 700), counted, 0);
  EXPECT_NE(token_cost(mixed, config, 1, 700), softmax_token_cost(config, 700));
  EXPECT_EQ(softmax_tokens(2 * counted.products, config.heads, config.head_size), 700);
}

// A plan knows no more than shapes, and says the same as the student that is made from it.
TEST(TokenCost, OfAPlanIsThatOfItsStudent) {
  const Checkpoint checkpoint(test::fixtures() / "llama");
  const ModelConfig& config = checkpoint.config();
  FeatureSet features = test::hybrid_features(config, FeatureMap::kUntied);
  features.layers.front() = {};
  features.exact.front() = {};  // softmax attention
  DimensionPlan plan = fixed_plan(identity_of(config), 5, config.kv_heads);
  plan.heads = features.counts();
  plan.exact = features.exact;
  plan.key_heads = config.kv_heads;
  EXPECT_EQ(plan.token_cost(0), std::nullopt);
  for (size_t layer = 1; layer < features.layers.size(); ++layer)
    EXPECT_EQ(plan.token_cost(layer), token_cost(features, config, layer, 0)) << layer;
  const Json json = to_json(plan);
  EXPECT_TRUE(json["layer_costs"][0].is_null());
  EXPECT_EQ(json["layer_costs"][1]["bytes"], plan.token_cost(1)->bytes);
  EXPECT_EQ(json["layer_costs"][1]["operations"], plan.token_cost(1)->operations);
}

}  // namespace
}  // namespace dofla
