#include "dofla/linear/linear_model.h"

#include <gtest/gtest.h>

#include "dofla/core/version.h"
#include "dofla/distill/feature_init.h"
#include "dofla/plan/allocate.h"
#include "tests/support/expect_error.h"
#include "tests/support/fixtures.h"
#include "tests/support/linear_fixture.h"
#include "tests/support/random_values.h"

namespace dofla {
namespace {

class LinearModel : public testing::TestWithParam<std::tuple<std::string, FeatureMap>> {
 protected:
  const Checkpoint teacher{test::fixtures() / std::get<0>(GetParam())};
  const FeatureMap map = std::get<1>(GetParam());
  const ModelConfig config = teacher.config();
  const Tensor ids = Safetensors(teacher.folder() / "expected.safetensors").tensor("input_ids");

  FeatureSet features() const { return test::ragged_features(config, map); }
  double tolerance(const Tensor& reference) const {
    const int64_t longest = std::max({config.width, config.mlp_width, ids.size(1)});
    return test::float32_tolerance(longest, 5 * config.layers + 1, test::largest(reference));
  }
};

TEST_P(LinearModel, DecodingTokenByTokenGivesTheSameAsOneCall) {
  const Transformer model = make_linear_model(teacher, features());
  const Tensor row = ids.slice(0, 1);
  const int64_t tokens = row.size(1);
  const Tensor whole = model.forward(row);
  DecodeState state = model.new_state();
  Tensor steps({1, tokens, config.width});
  for (int64_t t = 0; t < tokens; ++t) {
    const Tensor one = row.reshape({tokens}).slice(t, t + 1).reshape({1, 1});
    const Tensor hidden = model.forward(one, {.state = &state, .observer = {}});
    std::copy_n(hidden.data<float>(), config.width, steps.data<float>() + t * config.width);
    EXPECT_EQ(state.bytes(), state_bytes(features(), config)) << "the state must not grow";
  }
  test::expect_near(steps, whole, tolerance(whole), "hidden");
}

TEST_P(LinearModel, LaterTokensChangeNothingBefore) {
  const Transformer model = make_linear_model(teacher, features());
  const int64_t tokens = ids.size(1), cut = tokens / 2;
  Tensor changed = ids.slice(0, 1).clone();
  for (int64_t t = cut; t < tokens; ++t)
    changed.data<int64_t>()[t] = (changed.data<int64_t>()[t] + 1) % config.vocabulary;
  const Tensor a = model.forward(ids.slice(0, 1)).reshape({tokens, config.width}).slice(0, cut);
  const Tensor b = model.forward(changed).reshape({tokens, config.width}).slice(0, cut);
  test::expect_near(b, a, tolerance(a), "before the change");
}

TEST_P(LinearModel, AForkRollsBack) {
  const Transformer model = make_linear_model(teacher, features());
  const Tensor flat = ids.reshape({ids.count()});
  DecodeState state = model.new_state();
  model.forward(flat.slice(0, 9).reshape({1, 9}), {.state = &state, .observer = {}});
  DecodeState kept = state.fork();
  const Tensor next = flat.slice(9, 10).reshape({1, 1});
  const Tensor a = model.forward(next, {.state = &state, .observer = {}});
  model.forward(next, {.state = &state, .observer = {}});
  const Tensor b = model.forward(next, {.state = &kept, .observer = {}});
  test::expect_near(b, a, 0, "after rolling back");
}

TEST_P(LinearModel, AForkOfSeveralCopiesIsABatch) {
  const Transformer model = make_linear_model(teacher, features());
  const Tensor flat = ids.reshape({ids.count()});
  DecodeState state = model.new_state();
  model.forward(flat.slice(0, 9).reshape({1, 9}), {.state = &state, .observer = {}});
  DecodeState batch = state.fork(2);
  const Tensor both =
      model.forward(flat.slice(9, 15).reshape({2, 3}), {.state = &batch, .observer = {}});
  for (int64_t i = 0; i < 2; ++i) {
    DecodeState one = state.fork();
    const Tensor next = flat.slice(9 + 3 * i, 12 + 3 * i).reshape({1, 3});
    const Tensor alone = model.forward(next, {.state = &one, .observer = {}});
    test::expect_near(both.slice(i, i + 1), alone, tolerance(alone), "hidden of a copy");
  }
}

TEST_P(LinearModel, ASavedModelIsTheSameModel) {
  const test::ScratchFolder scratch;
  write_linear_model(scratch.path(), teacher, features(), {{"loss", "softmax"}});
  const Checkpoint saved(scratch.path());
  EXPECT_TRUE(is_linear(saved));
  EXPECT_FALSE(is_linear(teacher));
  EXPECT_EQ(saved.config_json()["linear_attention"]["loss"], "softmax");
  EXPECT_EQ(saved.config_json()["linear_attention"]["dofla"], version());
  const Tensor a = make_linear_model(teacher, features()).forward(ids);
  test::expect_near(load_model(saved).forward(ids), a, 0, "hidden");
  EXPECT_EQ(load_features(saved).counts(), features().counts());
  EXPECT_EQ(load_features(saved).map, map);
}

// A state for every head that has features: of key heads where they are untied.
TEST_P(LinearModel, TheStateBelongsToTheHeadsThatHaveFeatures) {
  const int64_t heads = map == FeatureMap::kUntied ? config.kv_heads : config.heads;
  int64_t expected = 0;
  for (int64_t layer = 0; layer < config.layers; ++layer)
    for (int64_t head = 0; head < heads; ++head)
      expected += (5 + 3 * head + layer) * (config.head_size + 2) * 4;
  EXPECT_EQ(state_bytes(features(), config), expected);
}

// Its weights are those of its coordinates already; going on from its features needs them too.
TEST_P(LinearModel, CoordinatesAreSavedWithTheModel) {
  FeatureSet set = features();
  std::vector<std::vector<int64_t>> rows;
  for (int64_t b = 0; b < ids.size(0); ++b) rows.push_back(test::as_vector(ids.slice(b, b + 1)));
  set.coordinates = measure_coordinates(Transformer(teacher), rows, Coordinates::kBalanced);
  const Tensor whole = make_linear_model(teacher, set).forward(ids);
  EXPECT_FALSE(test::same_bits(whole, make_linear_model(teacher, features()).forward(ids)));

  const test::ScratchFolder scratch, trained;
  write_linear_model(scratch.path(), teacher, set, {});
  const Checkpoint saved(scratch.path());
  EXPECT_TRUE(test::same_bits(load_model(saved).forward(ids), whole));
  EXPECT_TRUE(
      test::same_bits(make_linear_model(teacher, load_features(saved)).forward(ids), whole));
  // Training keeps them beside what it changes.
  write_trained_model(trained.path(), saved, load_model(saved), {});
  const FeatureSet after = load_features(Checkpoint(trained.path()));
  EXPECT_EQ(after.coordinates.kind, Coordinates::kBalanced);
  for (size_t i = 0; i < set.coordinates.layers.size(); ++i) {
    EXPECT_TRUE(test::same_bits(after.coordinates.layers[i].map, set.coordinates.layers[i].map));
    EXPECT_TRUE(
        test::same_bits(after.coordinates.layers[i].shift, set.coordinates.layers[i].shift));
  }
}

// Stands for an optimizer: every parameter moves a little.
void train(Transformer& model) {
  model.make_trainable();
  for (auto& [name, tensor] : parameters(model, {.weights = true, .features = true}))
    for (int64_t i = 0; i < tensor.count(); ++i)
      tensor.data<float>()[i] += static_cast<float>(i % 7) * 1e-3f;
}

void expect_saved_as_trained(const Checkpoint& source, const Tensor& ids) {
  Transformer model = load_model(source);
  const Tensor before = model.forward(ids);
  train(model);
  const Tensor after = model.forward(ids);
  EXPECT_FALSE(test::same_bits(after, before));
  const test::ScratchFolder scratch;
  write_trained_model(scratch.path(), source, model, {{"task", "none"}});
  const Checkpoint saved(scratch.path());
  EXPECT_EQ(saved.config_json()["training"]["task"], "none");
  const Transformer loaded = load_model(saved);
  EXPECT_TRUE(test::same_bits(loaded.forward(ids), after));
  const Tensor rows = after.reshape({ids.count(), source.config().width});
  EXPECT_TRUE(test::same_bits(loaded.logits(rows), model.logits(rows)));
  EXPECT_TRUE(test::same_bits(load_model(source).forward(ids), before)) << "the source has changed";
}

TEST_P(LinearModel, ATrainedModelIsSavedUnderTheNamesOfItsSource) {
  expect_saved_as_trained(teacher, ids);
  const test::ScratchFolder scratch;
  write_linear_model(scratch.path(), teacher, features(), {});
  const Checkpoint linear(scratch.path());
  expect_saved_as_trained(linear, ids);
  EXPECT_THROW(write_trained_model(scratch.path(), teacher, load_model(linear), {}),
               std::invalid_argument);
}

// A layer without features keeps its softmax attention: it is saved, loaded, trained and saved
// again.
TEST_P(LinearModel, SoftmaxBesideLinear) {
  const FeatureSet mixed = test::mixed_features(config, map);
  const Transformer model = make_linear_model(teacher, mixed);
  EXPECT_EQ(model.attention(0).features(), nullptr);
  ASSERT_GT(config.layers, 1);
  EXPECT_NE(model.attention(1).features(), nullptr);
  const Tensor whole = model.forward(ids);
  EXPECT_FALSE(test::same_bits(whole, Transformer(teacher).forward(ids)));
  EXPECT_FALSE(test::same_bits(whole, make_linear_model(teacher, features()).forward(ids)));

  const test::ScratchFolder scratch;
  write_linear_model(scratch.path(), teacher, mixed, {{"loss", "softmax"}});
  const Checkpoint saved(scratch.path());
  EXPECT_TRUE(saved.config_json()["linear_attention"]["features"][0].is_null());
  EXPECT_FALSE(saved.contains("linear_attention.0.z"));
  EXPECT_TRUE(test::same_bits(load_model(saved).forward(ids), whole));
  EXPECT_EQ(load_features(saved).counts(), mixed.counts());
  expect_saved_as_trained(saved, ids);
  EXPECT_EQ(
      state_bytes(mixed, config), state_bytes(features(), config) - [&] {
        FeatureSet kept = features();
        for (size_t layer = 1; layer < kept.layers.size(); layer += 2) kept.layers[layer] = {};
        return state_bytes(kept, config);
      }());
}

INSTANTIATE_TEST_SUITE_P(Fixtures, LinearModel,
                         testing::Combine(testing::Values("gpt2", "gpt_neox", "qwen3"),
                                          testing::Values(FeatureMap::kPrf, FeatureMap::kUntied)),
                         [](const auto& model) {
                           return std::get<0>(model.param) + "_" +
                                  std::string(name(std::get<1>(model.param)));
                         });

// wiki-mini is stored in bfloat16, with a tied head.
TEST(LinearModelFiles, ATrainedModelIsInFloat32) {
  const Checkpoint source(test::assets() / "wiki-mini");
  Tensor ids({1, 5}, DType::kI64);
  for (int64_t i = 0; i < 5; ++i) ids.data<int64_t>()[i] = 100 * i;
  expect_saved_as_trained(source, ids);
  Transformer model(source);
  model.make_trainable();
  EXPECT_EQ(model.weights().head.weight.raw(), model.weights().token_embedding.raw());
  const test::ScratchFolder scratch;
  write_trained_model(scratch.path(), source, model, {});
  const Checkpoint saved(scratch.path());
  EXPECT_EQ(saved.config_json()["torch_dtype"], "float32");
  EXPECT_EQ(saved.tensor("wte.weight").dtype(), DType::kF32);
  EXPECT_FALSE(saved.contains("lm_head.weight"));
  EXPECT_TRUE(fs::exists(scratch.path() / "tokenizer.json"));
}

}  // namespace
}  // namespace dofla
