#include "dofla/sensitivity/sensitivity_table.h"

#include <cmath>

#include "dofla/checkpoint/config_fields.h"
#include "dofla/core/error.h"
#include "dofla/core/saved_json.h"
#include "dofla/plan/dimension_plan.h"

namespace dofla {
namespace {

constexpr std::string_view kFormat = "dofla.sensitivity";
constexpr int64_t kVersion = 1;
constexpr size_t kMostRungs = 64;

std::vector<int64_t> read_ladder(const Json& json, const std::string& where) {
  const auto found = json.find("ladder");
  if (found == json.end() || !found->is_array() || found->size() < 2 || found->size() > kMostRungs)
    fail("{}: ladder: expected from 2 to {} numbers of features", where, kMostRungs);
  std::vector<int64_t> ladder;
  for (const Json& entry : *found) {
    const int64_t M = entry.is_number_integer() ? entry.get<int64_t>() : 0;
    const bool grows =
        M >= 1 && M <= DimensionPlan::kLargestDimension && (ladder.empty() || M > ladder.back());
    if (!grows)
      fail("{}: ladder: expected whole numbers from 1 to {} that grow, found {}", where,
           DimensionPlan::kLargestDimension, excerpt(entry));
    ladder.push_back(M);
  }
  return ladder;
}

SensitivityTable::Curve read_curve(const Json& json, size_t size, const std::string& where) {
  if (!json.is_array() || json.size() != size)
    fail("{}: expected {} losses, one for every M of the ladder, found {}", where, size,
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
  for (size_t layer = 0; layer < table.layers.size(); ++layer)
    layers.push_back({{"added", table.layers[layer]}, {"heads", table.heads[layer]}});
  return {{"format", kFormat},
          {"version", kVersion},
          {"model", to_json(table.model)},
          {"feature_heads", table.heads_in_layer()},
          {"coordinates", name(table.coordinates)},
          {"ladder", table.ladder},
          {"steps", table.steps},
          {"batch", table.batch},
          {"windows", table.windows},
          {"length", table.length},
          {"text", table.text},
          {"seed", table.seed},
          {"teacher_loss", table.teacher_loss},
          {"layers", std::move(layers)}};
}

void save_sensitivity(const fs::path& path, const SensitivityTable& table) {
  write_whole(path, to_json(table).dump() + "\n");
}

bool is_sensitivity(const Json& json) {
  return json.is_object() && json.value("format", Json()) == kFormat;
}

SensitivityTable read_sensitivity(const Json& json, const std::string& where) {
  require_format(json, kFormat, kVersion, where);
  const ConfigFields fields(json, where);
  SensitivityTable table;
  if (!json.contains("model")) fields.refuse("model", "missing");
  table.model = read_identity(json["model"], where + ": model");
  table.feature_heads = read_feature_heads(fields, table.model);
  const auto coordinates = find_named<Coordinates>(fields.text("coordinates").value_or(""));
  if (!coordinates) fields.refuse("coordinates", "expected " + one_of_names<Coordinates>());
  table.coordinates = *coordinates;
  table.ladder = read_ladder(json, where);
  const Json* steps = fields.find("steps");
  if (steps == nullptr || !steps->is_number_unsigned())
    fields.refuse("steps", "expected a whole number");
  table.steps = steps->get<int64_t>();
  table.batch = fields.size("batch");
  table.windows = fields.size("windows");
  table.length = fields.size("length");
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
    if (!layers[s].contains("added")) fail("{}: added: missing", in_layer);
    table.layers.push_back(
        read_curve(layers[s]["added"], table.ladder.size(), in_layer + ": added"));
    table.heads.emplace_back();
    for (size_t h = 0; h < heads.size(); ++h)
      table.heads.back().push_back(
          read_curve(heads[h], table.ladder.size(), fmt::format("{}, head {}", in_layer, h + 1)));
  }
  return table;
}

SensitivityTable load_sensitivity(const fs::path& path) {
  return read_sensitivity(load_json(path, Input::kFileOrPipe), path.string());
}

}  // namespace dofla
