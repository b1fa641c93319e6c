#include "dofla/sensitivity/sensitivity_table.h"

#include <cmath>

#include "dofla/checkpoint/config_fields.h"
#include "dofla/core/error.h"
#include "dofla/core/saved_json.h"
#include "dofla/features/exact_key_set.h"
#include "dofla/plan/dimension_plan.h"

namespace dofla {
namespace {

constexpr std::string_view kSensitivityFormat = "dofla.sensitivity";
constexpr int64_t kSensitivityVersion = 1;
constexpr size_t kMostRungs = 64;

std::vector<int64_t> read_ladder(const Json& json, const char* field, size_t fewest, int64_t low,
                                 int64_t high, const std::string& where) {
  const auto found = json.find(field);
  if (found == json.end() || !found->is_array() || found->size() < fewest ||
      found->size() > kMostRungs)
    fail("{}: {}: expected from {} to {} numbers", where, field, fewest, kMostRungs);
  std::vector<int64_t> ladder;
  for (const Json& entry : *found) {
    const int64_t rung = entry.is_number_integer() ? entry.get<int64_t>() : low - 1;
    if (rung < low || rung > high || (!ladder.empty() && rung <= ladder.back()))
      fail("{}: {}: expected whole numbers from {} to {} that grow, found {}", where, field, low,
           high, excerpt(entry));
    ladder.push_back(rung);
  }
  return ladder;
}

// The exact keys that features stood beside, and the K of caches without features.
void read_exact(const Json& json, const ConfigFields& fields, const std::string& where,
                SensitivityTable& table) {
  if (!json.contains("exact_keys")) return;
  table.exact = read_exact_keys(json["exact_keys"], where + ": exact_keys");
  table.key_heads = fields.size("key_heads");
  if (table.model.heads % table.key_heads != 0)
    fields.refuse("key_heads", fmt::format("expected a divisor of {}", table.model.heads));
  if (json.contains("key_ladder") && !table.exact.empty())
    table.key_ladder =
        read_ladder(json, "key_ladder", 1, least_keys(table.exact), table.length - 1, where);
}

SensitivityTable::Curve read_curve(const Json& json, size_t size, const std::string& where) {
  if (!json.is_array() || json.size() != size)
    fail("{}: expected {} losses, found {}", where, size,
         json.is_array() ? std::to_string(json.size()) : excerpt(json));
  SensitivityTable::Curve curve;
  for (const Json& entry : json) {
    const double value = entry.is_number() ? entry.get<double>() : NAN;
    if (!std::isfinite(value)) fail("{}: expected a number, found {}", where, excerpt(entry));
    curve.push_back(value);
  }
  return curve;
}

}  // namespace

Json to_json(const SensitivityTable& table) {
  Json layers = Json::array();
  for (size_t layer = 0; layer < table.layers.size(); ++layer) {
    layers.push_back({{"added", table.layers[layer]}, {"heads", table.heads[layer]}});
    if (table.key_ladder.empty()) continue;
    layers.back()["added_without_features"] = table.keys[layer];
    layers.back()["heads_without_features"] = table.key_shares[layer];
  }
  Json json = {{"format", kSensitivityFormat},
               {"version", kSensitivityVersion},
               {"model", to_json(table.model)},
               {"feature_heads", table.heads_in_layer()},
               {"coordinates", name(table.coordinates)},
               {"ladder", table.ladder},
               {"steps", table.steps},
               {"batch", table.batch},
               {"recipe", table.recipe},
               {"windows", table.windows},
               {"length", table.length},
               {"text", table.text},
               {"seed", table.seed},
               {"teacher_loss", table.teacher_loss},
               {"layers", std::move(layers)}};
  if (!table.exact.empty()) {
    json["exact_keys"] = to_json(table.exact);
    json["key_heads"] = table.key_heads;
  }
  if (!table.key_ladder.empty()) json["key_ladder"] = table.key_ladder;
  if (table.recall.windows > 0) json["recall"] = to_json(table.recall);
  return json;
}

void save_sensitivity(const fs::path& path, const SensitivityTable& table) {
  write_whole(path, to_json(table).dump() + "\n");
}

bool is_sensitivity(const Json& json) {
  return json.is_object() && json.value("format", Json()) == kSensitivityFormat;
}

SensitivityTable read_sensitivity(const Json& json, const std::string& where) {
  require_format(json, kSensitivityFormat, kSensitivityVersion, where);
  const ConfigFields fields(json, where);
  SensitivityTable table;
  if (!json.contains("model")) fields.refuse("model", "missing");
  table.model = read_identity(json["model"], where + ": model");
  table.feature_heads = read_feature_heads(fields, table.model);
  const auto coordinates = find_named<Coordinates>(fields.text("coordinates").value_or(""));
  if (!coordinates) fields.refuse("coordinates", "expected " + one_of_names<Coordinates>());
  table.coordinates = *coordinates;
  table.ladder = read_ladder(json, "ladder", 2, 1, DimensionPlan::kLargestDimension, where);
  const Json* steps = fields.find("steps");
  if (steps == nullptr || !steps->is_number_unsigned())
    fields.refuse("steps", "expected a whole number");
  table.steps = steps->get<int64_t>();
  table.batch = fields.size("batch");
  const Json* recipe = fields.find("recipe");
  if (recipe == nullptr || !recipe->is_object()) fields.refuse("recipe", "expected an object");
  table.recipe = *recipe;
  table.windows = fields.size("windows");
  table.length = fields.size("length");
  read_exact(json, fields, where, table);
  if (json.contains("recall") && !table.exact.empty())
    table.recall = read_recall(json["recall"], table.model.layers, table.key_heads, table.length,
                               where + ": recall");
  table.text = fields.text("text").value_or("");
  const Json* seed = fields.find("seed");
  if (seed == nullptr || !seed->is_number_unsigned())
    fields.refuse("seed", "expected a whole number");
  table.seed = seed->get<uint64_t>();
  table.teacher_loss = fields.positive("teacher_loss");
  const Json& layers = array_field(json, "layers", table.model.layers, where);
  for (size_t s = 0; s < layers.size(); ++s) {
    const std::string in_layer = fmt::format("{}: layer {}", where, s + 1);
    const Json& heads = array_field(layers[s], "heads", table.heads_in_layer(), in_layer);
    const auto curve = [&](const char* field, size_t size) {
      if (!layers[s].contains(field)) fail("{}: {}: missing", in_layer, field);
      return read_curve(layers[s][field], size, fmt::format("{}: {}", in_layer, field));
    };
    table.layers.push_back(curve("added", table.ladder.size()));
    const auto curves = [&](const Json& of_heads, size_t size) {
      std::vector<SensitivityTable::Curve> read;
      for (const Json& head : of_heads)
        read.push_back(
            read_curve(head, size, fmt::format("{}, head {}", in_layer, read.size() + 1)));
      return read;
    };
    table.heads.push_back(curves(heads, table.ladder.size()));
    if (table.key_ladder.empty()) continue;
    table.keys.push_back(curve("added_without_features", table.key_ladder.size()));
    table.key_shares.push_back(
        curves(array_field(layers[s], "heads_without_features", table.key_heads, in_layer),
               table.key_ladder.size()));
  }
  return table;
}

SensitivityTable load_sensitivity(const fs::path& path) {
  return read_sensitivity(load_json(path, Input::kFileOrPipe), path.string());
}

}  // namespace dofla
