// What linear attention costs where: the next-token loss that a single layer or head adds when it
// alone is linear, for students of several sizes. One file serves any budget (docs/sensitivity.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dofla/core/json.h"
#include "dofla/features/coordinates.h"
#include "dofla/model/identity.h"
#include "dofla/ops/exact_keys.h"
#include "dofla/sensitivity/recall_order.h"

namespace dofla {

struct SensitivityTable {
  using Curve = std::vector<double>;  // loss added, in nats a token, for every M of the ladder

  ModelIdentity model;
  int64_t feature_heads = 0;  // heads of a layer that have features: key heads; 0: all query heads
  Coordinates coordinates = Coordinates::kRaw;  // of the queries and keys
  ExactKeys exact = {};                         // that every layer kept beside its features
  int64_t key_heads = 0;                        // of a layer, where there are exact keys
  std::vector<int64_t> ladder;                  // M of the students, at least two and growing
  std::vector<int64_t> key_ladder = {};         // K of caches without features, growing and below
                                                // the length of a window; or none
  int64_t steps = 0;  // that each of them was trained, on `batch` windows a step
  int64_t batch = 0;
  Json recipe = Json::object();  // how their features were made: {"features", "init", "loss", …}
  int64_t windows = 0;           // of training text, that the loss was measured on
  int64_t length = 0;            // tokens of a window
  std::string text;              // fingerprint of the training text
  uint64_t seed = 0;
  double teacher_loss = 0;                // on these windows
  std::vector<Curve> layers;              // [layers], measured
  std::vector<std::vector<Curve>> heads;  // [layers, heads]; those of a layer add up to its curve
  std::vector<Curve> keys = {};  // [layers], that a cache of exact keys alone adds, for every K of
                                 // the key ladder; none without one
  std::vector<std::vector<Curve>> key_shares = {};  // [layers, key heads], adding up to these
  RecallOrder recall = {};

  int64_t heads_in_layer() const { return feature_heads > 0 ? feature_heads : model.heads; }
};

// {"format":"dofla.sensitivity",…,"layers":[{"added":[…],"heads":[[…]]}]}, with exact keys
// "exact_keys" and "key_heads", with a key ladder "key_ladder" and "added_without_features" and
// "heads_without_features" in the layers, where recall is known "recall". Reading trusts nothing in
// the file and throws Error "where: …".
Json to_json(const SensitivityTable& table);
void save_sensitivity(const fs::path& path, const SensitivityTable& table);
bool is_sensitivity(const Json& json);  // whether it says so
SensitivityTable read_sensitivity(const Json& json, const std::string& where);
SensitivityTable load_sensitivity(const fs::path& path);

}  // namespace dofla
