#include "dofla/fidelity/cost.h"

#include <gtest/gtest.h>

#include "dofla/linear/linear_model.h"
#include "tests/support/fixtures.h"
#include "tests/support/linear_fixture.h"

namespace dofla {
namespace {

class CostOf : public testing::Test {
 protected:
  const Checkpoint checkpoint{test::fixtures() / "gpt2"};
  const ModelConfig& config = checkpoint.config();
  const std::vector<TokenIds> text = {test::as_vector(test::some_ids(config, 1, 16))};
  // Keys and values of a layer, two bytes each.
  int64_t cache(int64_t layers, int64_t tokens) const {
    return layers * 2 * config.kv_heads * config.head_size * tokens * 2;
  }
};

TEST_F(CostOf, ASoftmaxModelGrows) {
  const Transformer model(checkpoint);
  const Cost cost = measure_cost(model, {}, text, 12, 1);
  EXPECT_TRUE(cost.grows);
  EXPECT_EQ(cost.bytes[0], cache(config.layers, 1000));
  EXPECT_EQ(cost.bytes[2], cache(config.layers, 1'000'000));
  EXPECT_EQ(cost.context_bytes, cache(config.layers, config.context));
  EXPECT_GT(cost.prefill, 0);
  EXPECT_GT(cost.decode, 0);
  EXPECT_EQ(cost.timed_tokens, 12);
}

TEST_F(CostOf, ALinearModelDoesNotAndAMixedOneDoesInPart) {
  const FeatureSet linear = test::ragged_features(config), mixed = test::mixed_features(config);
  const Cost flat = measure_cost(make_linear_model(checkpoint, linear), linear, text, 12, 1);
  EXPECT_FALSE(flat.grows);
  EXPECT_EQ(flat.bytes[0], state_bytes(linear, config));
  EXPECT_EQ(flat.bytes[2], flat.bytes[0]);
  int64_t kept = 0;
  for (const Features& layer : mixed.layers) kept += layer.empty();
  ASSERT_GT(kept, 0);
  ASSERT_LT(kept, config.layers);
  EXPECT_EQ(sequence_bytes(mixed, config, 1000), state_bytes(mixed, config) + cache(kept, 1000));
  EXPECT_EQ(growing_layers(mixed, config), kept);
}

TEST_F(CostOf, TheCacheIsLargerFromTheTokensThatItSays) {
  const int64_t bytes = cache(config.layers, 7) + 1;
  EXPECT_EQ(tokens_in(config, bytes), 8);
  EXPECT_GT(cache_bytes(config, tokens_in(config, bytes)), bytes);
  EXPECT_LE(cache_bytes(config, tokens_in(config, bytes) - 1), bytes);
}

}  // namespace
}  // namespace dofla
