// What a student's folder holds, and each way in which it can be wrong.
#include <gtest/gtest.h>

#include "dofla/distill/feature_init.h"
#include "dofla/linear/linear_model.h"
#include "dofla/plan/allocate.h"
#include "tests/support/expect_error.h"
#include "tests/support/fixtures.h"
#include "tests/support/linear_fixture.h"
#include "tests/support/random_values.h"

namespace dofla {
namespace {

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

TEST(LinearModelFiles, BrokenExactKeysAreRefused) {
  const auto expect_keys_refused = [](const std::function<void(Json & keys)>& spoil,
                                      std::initializer_list<std::string_view> parts) {
    const test::ScratchFolder scratch;
    const Checkpoint teacher(test::fixtures() / "gpt2");
    write_linear_model(scratch.path(), teacher, test::hybrid_features(teacher.config()), {});
    const fs::path file = scratch.path() / "config.json";
    Json config = load_json(file);
    spoil(config["linear_attention"]["exact_keys"]);
    write_whole(file, config.dump());
    test::expect_error([&] { load_model(Checkpoint(scratch.path())); }, parts);
  };
  expect_keys_refused([](Json& keys) { keys = "many"; }, {"config.json", "list of 3 layers"});
  expect_keys_refused([](Json& keys) { keys.erase(0); }, {"exact_keys", "list of 3 layers"});
  expect_keys_refused([](Json& keys) { keys[1] = 8; }, {"layer 2", "object or null"});
  for (const char* field : {"keys", "sinks", "recent", "block", "policy", "decay"}) {
    expect_keys_refused([&](Json& keys) { keys[1].erase(field); }, {"layer 2", field});
    expect_keys_refused([&](Json& keys) { keys[1][field] = Json::array(); }, {"layer 2", field});
    if (field != std::string_view("policy"))
      expect_keys_refused([&](Json& keys) { keys[1][field] = -1; }, {"layer 2", field});
  }
  expect_keys_refused([](Json& keys) { keys[1]["keys"] = {8}; }, {"layer 2", "key heads, found 1"});
  expect_keys_refused([](Json& keys) { keys[1]["keys"][0] = 6; }, {"layer 2", "6 are too few"});
  for (const Json& bad : {Json("8"), Json(-8), Json(8.5), Json(1e18), Json(nullptr)})
    expect_keys_refused([&](Json& keys) { keys[1]["keys"][0] = bad; },
                        {"layer 2", "keys", "whole number for every key head"});
  expect_keys_refused([](Json& keys) { keys[0]["keys"] = 6; }, {"layer 1", "6 are too few"});
  expect_keys_refused([](Json& keys) { keys[0]["keys"] = 1e18; }, {"layer 1", "keys"});
  expect_keys_refused([](Json& keys) { keys[0]["block"] = 3; }, {"layer 1", "divides 64"});
  expect_keys_refused([](Json& keys) { keys[0]["decay"] = 1; }, {"layer 1", "decay"});
  expect_keys_refused([](Json& keys) { keys[0]["policy"] = "oldest"; },
                      {"layer 1", "policy", "attended", "recent"});
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

TEST(LinearModelFiles, MemoryOfTheCache) {
  ModelConfig config;
  config.layers = 12;
  config.kv_heads = 12;
  config.head_size = 64;
  EXPECT_EQ(cache_bytes(config, 1024), 2 * 12 * 12 * 1024 * 64 * 2);
}

}  // namespace
}  // namespace dofla
