#include "dofla/plan/dimension_plan.h"

#include <functional>

#include <gtest/gtest.h>

#include "dofla/core/error.h"
#include "dofla/plan/allocate.h"
#include "tests/support/damaged_json.h"
#include "tests/support/expect_error.h"
#include "tests/support/tables.h"

namespace dofla {
namespace {

DimensionPlan plan_with(PlanStrategy strategy) {
  AllocateOptions options = {.strategy = strategy, .cost = 16};
  if (strategy == PlanStrategy::kDofHead) options.power = 0.5;
  return allocate(test::small_table(), options);
}

class DimensionPlanFile : public test::DamagedJson {
 protected:
  DimensionPlanFile() : DamagedJson([](const fs::path& path) { load_dimension_plan(path); }) {}

  void expect_refused(PlanStrategy strategy, const std::function<void(Json&)>& damage,
                      const std::string& about) {
    expect_damage_refused(to_json(plan_with(strategy)), damage, about);
  }
};

TEST_F(DimensionPlanFile, ComesBack) {
  for (const PlanStrategy strategy :
       {PlanStrategy::kFix, PlanStrategy::kDof, PlanStrategy::kDofClip, PlanStrategy::kDofHead}) {
    EXPECT_EQ(find_named<PlanStrategy>(name(strategy)), strategy);
    const DimensionPlan plan = plan_with(strategy);
    save_dimension_plan(path_, plan);
    const DimensionPlan loaded = load_dimension_plan(path_);
    EXPECT_EQ(loaded.model, plan.model);
    EXPECT_EQ(loaded.strategy, plan.strategy);
    EXPECT_EQ(loaded.cost, plan.cost);
    EXPECT_EQ(loaded.lambda, plan.lambda);
    EXPECT_EQ(loaded.heads, plan.heads);
    if (strategy == PlanStrategy::kDofHead) {
      EXPECT_EQ(loaded.power, plan.power);
    }
  }
}

TEST_F(DimensionPlanFile, HasTheFieldsThatUsersRead) {
  const Json layers = to_json(plan_with(PlanStrategy::kDof));
  EXPECT_EQ(layers["strategy"], "dof");
  EXPECT_EQ(layers["cost"], 16);
  EXPECT_EQ(layers["dims"].size(), 3u);
  EXPECT_FALSE(layers.contains("heads"));
  const Json heads = to_json(plan_with(PlanStrategy::kDofHead));
  EXPECT_EQ(heads["mean"], 16.0);
  EXPECT_EQ(heads["heads"].size(), 3u);
  EXPECT_EQ(heads["heads"][0].size(), 2u);
  EXPECT_EQ(heads["power"], 0.5);
}

TEST(DimensionPlan, DimsOfUnequalHeadsAreTheirMean) {
  DimensionPlan plan;
  plan.heads = {{1, 2, 6}, {4, 4, 3}};  // 3, and 3 2/3, which is rounded
  EXPECT_EQ(plan.dims(), (std::vector<int64_t>{3, 4}));
  EXPECT_DOUBLE_EQ(plan.mean(), 20.0 / 6);
}

// A layer that keeps its softmax attention has null where others have numbers.
TEST_F(DimensionPlanFile, LayersWithoutFeaturesComeBack) {
  for (const PlanStrategy strategy : {PlanStrategy::kDof, PlanStrategy::kDofHead}) {
    DimensionPlan plan = plan_with(strategy);
    plan.heads[1].clear();
    EXPECT_EQ(plan.dims()[1], 0);
    save_dimension_plan(path_, plan);
    const Json json = load_json(path_);
    EXPECT_TRUE(json["dims"][1].is_null());
    EXPECT_EQ(load_dimension_plan(path_).heads, plan.heads);
    expect_refused(
        strategy,
        [](Json& j) {
          for (Json& entry : j["dims"]) entry = nullptr;
          if (j.contains("heads"))
            for (Json& entry : j["heads"]) entry = nullptr;
        },
        "no layer has features");
  }
}

TEST(DimensionPlan, FitsOnlyItsOwnModel) {
  const DimensionPlan plan = plan_with(PlanStrategy::kDof);
  ModelConfig config;
  config.model_type = "gpt2";
  config.layers = 3;
  config.heads = 2;
  config.head_size = 16;
  EXPECT_NO_THROW(require_fits(plan, config, FeatureMap::kPrf));
  for (const auto& change : std::vector<std::function<void(ModelConfig&)>>{
           [](ModelConfig& c) { c.layers = 4; }, [](ModelConfig& c) { c.heads = 4; },
           [](ModelConfig& c) { c.head_size = 8; },
           [](ModelConfig& c) { c.model_type = "llama"; }}) {
    ModelConfig other = config;
    change(other);
    try {
      require_fits(plan, other, FeatureMap::kPrf);
      FAIL() << "expected an error";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("the plan is for gpt2 with 3 layers of 2 heads"),
                std::string::npos);
    }
  }
}

TEST(DimensionPlan, IsForQueryHeadsOrForKeyHeads) {
  ModelConfig config;
  config.model_type = "llama";
  config.layers = 2;
  config.heads = 8;
  config.kv_heads = 2;
  config.head_size = 16;
  const DimensionPlan query = fixed_plan(identity_of(config), 5),
                      key = fixed_plan(identity_of(config), 5, 2);
  EXPECT_EQ(query.state_bytes(), 2 * 8 * 5 * 18 * 4);
  EXPECT_EQ(key.state_bytes(), 2 * 2 * 5 * 18 * 4);
  // TinyLlama with 64 features: a state a key head takes an eighth of one a query head.
  const ModelIdentity tiny_llama = {"llama", 22, 32, 64};
  EXPECT_EQ(fixed_plan(tiny_llama, 64, 4).state_bytes(), 1486848);
  EXPECT_EQ(fixed_plan(tiny_llama, 64).state_bytes(), 8 * 1486848);
  EXPECT_NO_THROW(require_fits(query, config, FeatureMap::kPrf));
  EXPECT_NO_THROW(require_fits(key, config, FeatureMap::kUntied));
  test::expect_error([&] { require_fits(query, config, FeatureMap::kUntied); },
                     {"for 8 heads a layer", "untied features belong to the 2 key heads",
                      "measured for untied features"});
  test::expect_error([&] { require_fits(key, config, FeatureMap::kPrf); },
                     {"for 2 heads a layer", "prf features belong to the 8 query heads"});
  config.kv_heads = 8;  // then there is no difference
  EXPECT_NO_THROW(require_fits(query, config, FeatureMap::kUntied));
}

TEST_F(DimensionPlanFile, SaysHowManyHeadsItIsFor) {
  const ModelIdentity model = {"llama", 2, 8, 16};
  for (const PlanStrategy strategy : {PlanStrategy::kDof, PlanStrategy::kDofHead}) {
    DimensionPlan plan = fixed_plan(model, 5, 2);
    plan.strategy = strategy;
    if (strategy == PlanStrategy::kDofHead) plan.by = PlanUnit::kHead;
    save_dimension_plan(path_, plan);
    EXPECT_EQ(load_json(path_)["feature_heads"], 2);
    const DimensionPlan loaded = load_dimension_plan(path_);
    EXPECT_EQ(loaded.heads_in_layer(), 2);
    EXPECT_EQ(loaded.heads, plan.heads);
    Json json = to_json(plan);
    json["feature_heads"] = 3;
    write_whole(path_, json.dump());
    test::expect_error([&] { load_dimension_plan(path_); }, {"feature_heads", "do not divide"});
  }
}

TEST_F(DimensionPlanFile, RefusesDamage) {
  const auto layers = PlanStrategy::kDof, heads = PlanStrategy::kDofHead;
  expect_refused(
      layers, [](Json& j) { j["version"] = 2; }, "newer dofla");
  expect_refused(
      layers, [](Json& j) { j["version"] = 0; }, "version");
  expect_refused(
      layers, [](Json& j) { j["format"] = "dofla.dof"; }, "dofla.plan");
  expect_refused(
      layers, [](Json& j) { j = 5; }, "dofla.plan");
  for (const char* field : {"model", "strategy", "cost", "lambda", "dims"})
    expect_refused(
        layers, [&](Json& j) { j.erase(field); }, field);
  expect_refused(
      layers, [](Json& j) { j["strategy"] = "best"; }, "strategy");
  expect_refused(
      layers, [](Json& j) { j["cost"] = 0; }, "cost");
  expect_refused(
      layers, [](Json& j) { j["lambda"] = -1; }, "lambda");
  expect_refused(
      layers, [](Json& j) { j["dims"].push_back(3); }, "expected 3 entries, found 4");
  expect_refused(
      layers, [](Json& j) { j["dims"][0] = 0; }, "dims");
  expect_refused(
      layers, [](Json& j) { j["dims"][0] = 1.5; }, "dims");
  expect_refused(
      layers, [](Json& j) { j["dims"][0] = 1 << 21; }, "dims");
  expect_refused(
      layers, [](Json& j) { j["model"]["heads"] = 1 << 28; }, "heads");
  expect_refused(
      heads, [](Json& j) { j.erase("heads"); }, "heads");
  expect_refused(
      heads, [](Json& j) { j["heads"][1].push_back(1); }, "layer 2");
  expect_refused(
      heads, [](Json& j) { j["heads"][1][0] = -4; }, "layer 2");
  expect_refused(
      heads, [](Json& j) { j["dims"][1] = 1000; }, "do not agree");
  expect_refused(
      heads, [](Json& j) { j["power"] = "x"; }, "power");
}

TEST_F(DimensionPlanFile, RefusesAFileCutShort) {
  const std::string whole = to_json(plan_with(PlanStrategy::kDof)).dump();
  write_whole(path_, whole.substr(0, whole.size() - 5));
  expect_load_fails("not valid JSON");
}

}  // namespace
}  // namespace dofla
