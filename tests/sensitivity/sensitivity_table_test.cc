#include "dofla/sensitivity/sensitivity_table.h"

#include <cmath>
#include <functional>

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/fixtures.h"
#include "tests/support/sensitivity_table.h"

namespace dofla {
namespace {

class SensitivityFile : public testing::Test {
 protected:
  void expect_refused(const std::function<void(Json&)>& damage, std::string_view part,
                      const SensitivityTable& table = test::small_sensitivity()) const {
    Json json = to_json(table);
    damage(json);
    write_whole(path_, json.dump());
    test::expect_error([&] { load_sensitivity(path_); }, {path_.string(), part});
  }

  const test::ScratchFolder scratch_;
  const fs::path path_ = scratch_.path() / "sensitivity.json";
};

TEST_F(SensitivityFile, ComesBackAsItWas) {
  const SensitivityTable table = test::small_sensitivity();
  save_sensitivity(path_, table);
  const SensitivityTable back = load_sensitivity(path_);
  EXPECT_EQ(back.model, table.model);
  EXPECT_EQ(back.ladder, table.ladder);
  EXPECT_EQ(back.steps, table.steps);
  EXPECT_EQ(back.batch, table.batch);
  EXPECT_EQ(back.recipe, table.recipe);
  EXPECT_EQ(back.windows, table.windows);
  EXPECT_EQ(back.length, table.length);
  EXPECT_EQ(back.text, table.text);
  EXPECT_EQ(back.seed, table.seed);
  EXPECT_EQ(back.teacher_loss, table.teacher_loss);
  EXPECT_EQ(back.layers, table.layers);
  EXPECT_EQ(back.heads, table.heads);
  EXPECT_TRUE(is_sensitivity(to_json(table)));
  EXPECT_FALSE(is_sensitivity(Json::parse(R"({"format": "dofla.dof"})")));
  EXPECT_FALSE(is_sensitivity(Json::array()));
}

TEST_F(SensitivityFile, RefusesDamage) {
  expect_refused([](Json& j) { j["version"] = 2; }, "newer dofla");
  expect_refused([](Json& j) { j["format"] = "dofla.dof"; }, "dofla.sensitivity");
  for (const char* field : {"model", "ladder", "steps", "batch", "recipe", "windows", "length",
                            "seed", "teacher_loss", "layers"})
    expect_refused([&](Json& j) { j.erase(field); }, field);
  expect_refused([](Json& j) { j["ladder"] = {8}; }, "ladder");
  expect_refused([](Json& j) { j["ladder"] = {8, 2}; }, "that grow");
  expect_refused([](Json& j) { j["ladder"] = {-2, 8}; }, "ladder");
  expect_refused([](Json& j) { j["ladder"] = {2, 1 << 21}; }, "ladder");
  expect_refused([](Json& j) { j["ladder"] = {2, 4, 8}; }, "expected 3 losses");
  expect_refused([](Json& j) { j["steps"] = -1; }, "steps");
  expect_refused([](Json& j) { j["seed"] = -1; }, "seed");
  expect_refused([](Json& j) { j["layers"].push_back(j["layers"][0]); },
                 "expected 2 entries, found 3");
  expect_refused([](Json& j) { j["layers"][1].erase("added"); }, "layer 2: added: missing");
  expect_refused([](Json& j) { j["layers"][1]["added"] = {1}; }, "layer 2: added: expected 2");
  expect_refused([](Json& j) { j["layers"][0]["heads"].erase(1); }, "layer 1: heads");
  expect_refused([](Json& j) { j["layers"][0]["heads"][1] = 3; }, "layer 1, head 2");
  // NaN is written as null.
  expect_refused([](Json& j) { j["layers"][0]["heads"][1][0] = std::nan(""); },
                 "layer 1, head 2: expected a number, found null");
}

TEST_F(SensitivityFile, WithExactKeysComesBackAsItWas) {
  const SensitivityTable table = test::small_hybrid_sensitivity();
  save_sensitivity(path_, table);
  const SensitivityTable back = load_sensitivity(path_);
  EXPECT_EQ(back.exact, table.exact);
  EXPECT_EQ(back.key_heads, 1);
  EXPECT_EQ(back.key_ladder, table.key_ladder);
  EXPECT_EQ(back.keys, table.keys);
  EXPECT_EQ(to_json(back), to_json(table));
}

TEST_F(SensitivityFile, WithRecallComesBackAsItWas) {
  const SensitivityTable table = test::small_recall_sensitivity();
  save_sensitivity(path_, table);
  const SensitivityTable back = load_sensitivity(path_);
  EXPECT_EQ(back.recall.windows, 2);
  EXPECT_EQ(back.recall.lost, 4);
  ASSERT_EQ(back.recall.steps.size(), 2u);
  EXPECT_EQ(back.recall.steps[0].layer, 1);
  EXPECT_EQ(back.recall.steps[0].head, 0);
  EXPECT_EQ(back.recall.steps[0].keys, 4);
  EXPECT_EQ(back.recall.steps[0].saved, 3.2);
  EXPECT_EQ(to_json(back), to_json(table));
  const auto refused = [&](const std::function<void(Json&)>& damage, std::string_view part) {
    expect_refused(damage, part, table);
  };
  refused([](Json& j) { j["recall"] = 3; }, "recall");
  refused([](Json& j) { j["recall"]["windows"] = -1; }, "recall: windows");
  refused([](Json& j) { j["recall"].erase("lost"); }, "recall: lost: expected a number");
  refused([](Json& j) { j["recall"]["order"].erase(0); }, "recall: order: expected 2 entries");
  refused([](Json& j) { j["recall"]["order"][1] = 3; }, "recall: order 2");
  refused([](Json& j) { j["recall"]["order"][1]["layer"] = 3; },
          "recall: order 2: layer 3, head 1: there are 2 layers of 1");
  refused([](Json& j) { j["recall"]["order"][0]["head"] = 2; }, "recall: order 1: layer 2, head 2");
  refused([](Json& j) { j["recall"]["order"][0]["head"] = 0; }, "recall: order 1: head");
  refused([](Json& j) { j["recall"]["order"][1]["layer"] = 2; },
          "recall: order 2: layer 2, head 1 for the second time");
  refused([](Json& j) { j["recall"]["order"][1]["keys"] = 16; },
          "recall: order 2: keys: expected fewer than 16, found 16");
  refused([](Json& j) { j["recall"]["order"][0]["saved"] = std::nan(""); },
          "recall: order 1: saved: expected a number, found null");
}

TEST_F(SensitivityFile, RefusesDamagedExactKeys) {
  const auto refused = [&](const std::function<void(Json&)>& damage, std::string_view part) {
    expect_refused(damage, part, test::small_hybrid_sensitivity());
  };
  refused([](Json& j) { j["exact_keys"] = 3; }, "exact_keys: expected an object");
  refused([](Json& j) { j["exact_keys"]["keys"] = 3; }, "exact_keys: exact keys: 3 are too few");
  refused([](Json& j) { j["exact_keys"]["policy"] = "best"; }, "policy");
  refused([](Json& j) { j.erase("key_heads"); }, "key_heads");
  refused([](Json& j) { j["key_heads"] = 3; }, "key_heads: expected a divisor of 2");
  refused([](Json& j) { j["key_ladder"] = Json::array(); }, "key_ladder: expected from 1 to");
  refused([](Json& j) { j["key_ladder"] = {3, 8}; }, "whole numbers from 4 to 15");
  refused([](Json& j) { j["key_ladder"] = {4, 16}; }, "whole numbers from 4 to 15");
  refused([](Json& j) { j["key_ladder"] = {8, 4}; }, "that grow");
  refused([](Json& j) { j["layers"][1].erase("added_without_features"); },
          "layer 2: added_without_features: missing");
  refused([](Json& j) { j["layers"][0]["added_without_features"] = {1}; }, "expected 2 losses");
}

TEST_F(SensitivityFile, RefusesAFileCutShort) {
  const std::string whole = to_json(test::small_sensitivity()).dump();
  write_whole(path_, whole.substr(0, whole.size() - 5));
  test::expect_error([&] { load_sensitivity(path_); }, {"not valid JSON"});
}

}  // namespace
}  // namespace dofla
