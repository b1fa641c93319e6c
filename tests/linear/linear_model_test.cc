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
    EXPECT_EQ(state.bytes(), state_bytes(features())) << "the state must not grow";
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
  EXPECT_EQ(state_bytes(features()), expected);
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
      state_bytes(mixed), state_bytes(features()) - [&] {
        FeatureSet kept = features();
        for (size_t layer = 1; layer < kept.layers.size(); layer += 2) kept.layers[layer] = {};
        return state_bytes(kept);
      }());
}

INSTANTIATE_TEST_SUITE_P(Fixtures, LinearModel,
                         testing::Combine(testing::Values("gpt2", "gpt_neox", "qwen3"),
                                          testing::Values(FeatureMap::kPrf, FeatureMap::kUntied)),
                         [](const auto& model) {
                           return std::get<0>(model.param) + "_" +
                                  std::string(name(std::get<1>(model.param)));
                         });

// Each way in which the "linear_attention" block can be wrong.
void expect_refused(const std::function<void(Json&)>& spoil, std::string_view part) {
  const test::ScratchFolder scratch;
  const Checkpoint teacher(test::fixtures() / "gpt2");
  const auto plan = fixed_plan(identity_of(teacher.config()), 4);
  write_linear_model(scratch.path(), teacher, init_features(plan, {}), Json::object());
  const fs::path file = scratch.path() / "config.json";
  Json config = load_json(file);
  spoil(config["linear_attention"]);
  write_whole(file, config.dump());
  const Checkpoint saved(scratch.path());
  test::expect_error([&] { load_model(saved); }, {part});
}

TEST(LinearModelFiles, ABrokenBlockIsRefused) {
  expect_refused([](Json& block) { block["coordinates"] = "polar"; }, "coordinates: expected");
  expect_refused([](Json& block) { block["coordinates"] = "balanced"; },
                 "no tensor linear_attention.0.map");
  expect_refused([](Json& block) { block = 3; }, "config.json: linear_attention");
  expect_refused([](Json& block) { block.erase("version"); }, "version");
  expect_refused([](Json& block) { block["version"] = 2; }, "newer");
  expect_refused([](Json& block) { block["feature_map"] = "cosine"; }, "feature_map");
  expect_refused([](Json& block) { block.erase("features"); }, "features: expected");
  expect_refused([](Json& block) { block["features"].erase(0); }, "features: expected");
  expect_refused([](Json& block) { block["features"][0].erase(0); }, "features: expected");
  expect_refused([](Json& block) { block["features"][0][0] = 0; }, "features: expected");
  expect_refused([](Json& block) { block["features"][0][0] = 1.5; }, "features: expected");
  expect_refused([](Json& block) { block["features"][0][0] = 5; }, "linear_attention.0.z");
  expect_refused([](Json& block) { block["features"][0] = Json::array(); }, "features: expected");
  expect_refused(
      [](Json& block) {
        for (Json& layer : block["features"]) layer = nullptr;
      },
      "no layer has any");
}

// Of untied features of a model whose query heads share key heads.
void expect_untied_refused(const std::function<void(Json& block, NamedTensors& tensors)>& spoil,
                           std::initializer_list<std::string_view> parts) {
  const test::ScratchFolder scratch;
  const Checkpoint teacher(test::fixtures() / "qwen3");
  ASSERT_LT(teacher.config().kv_heads, teacher.config().heads);
  const FeatureSet features = test::ragged_features(teacher.config(), FeatureMap::kUntied);
  write_linear_model(scratch.path(), teacher, features, Json::object());
  Json config = load_json(scratch.path() / "config.json");
  NamedTensors tensors;
  {
    const Safetensors file(scratch.path() / "model.safetensors");
    for (const std::string& name : file.names())
      tensors.emplace_back(name, file.tensor(name).clone());
  }
  spoil(config["linear_attention"], tensors);
  write_whole(scratch.path() / "config.json", config.dump());
  write_safetensors(scratch.path() / "model.safetensors", tensors);
  test::expect_error([&] { load_model(Checkpoint(scratch.path())); }, parts);
}

Tensor& find(NamedTensors& tensors, std::string_view name) {
  return std::ranges::find(tensors, name, &NamedTensors::value_type::first)->second;
}

TEST(LinearModelFiles, BrokenUntiedFeaturesAreRefused) {
  expect_untied_refused(
      [](Json&, NamedTensors& tensors) {
        Tensor& u = find(tensors, "linear_attention.1.u");
        u = u.slice(0, u.size(0) - 1).clone();
      },
      {"linear_attention.1.u", "expected"});
  expect_untied_refused(
      [](Json&, NamedTensors& tensors) {
        std::erase_if(tensors,
                      [](const auto& x) { return x.first == "linear_attention.0.norm_weight"; });
      },
      {"linear_attention.0.norm_weight"});
  expect_untied_refused(
      [](Json&, NamedTensors& tensors) {
        find(tensors, "linear_attention.0.norm_weight") = Tensor::zeros({1});
      },
      {"linear_attention.0.norm_weight", "expected"});
  // Counts of query heads, where the features belong to key heads.
  expect_untied_refused([](Json& block, NamedTensors&) { block["features"][0].push_back(4); },
                        {"config.json", "lists of 2 whole numbers"});
  // Tied features have no u.
  expect_untied_refused([](Json& block, NamedTensors&) { block["feature_map"] = "prf"; },
                        {"config.json", "features: expected"});
}

TEST(LinearModelFiles, ASoftmaxModelHasNoFeatures) {
  const Checkpoint teacher(test::fixtures() / "gpt2");
  test::expect_error([&] { load_features(teacher); }, {"gpt2", "linear_attention"});
}

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

TEST(LinearModelFiles, MemoryOfTheCache) {
  ModelConfig config;
  config.layers = 12;
  config.kv_heads = 12;
  config.head_size = 64;
  EXPECT_EQ(cache_bytes(config, 1024), 2 * 12 * 12 * 1024 * 64 * 4);
}

}  // namespace
}  // namespace dofla
