// The file of a DofTable.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <string>

#include "dofla/checkpoint/config_fields.h"
#include "dofla/core/error.h"
#include "dofla/core/saved_json.h"
#include "dofla/dof/dof_table.h"

namespace dofla {
namespace {

constexpr std::string_view kDofFormat = "dofla.dof";
constexpr int64_t kDofVersion = 1;

Json head_json(const DofEstimate& dof) {
  return {{"dof", dof.mean}, {"spread", dof.spread}};
}

// Ten significant digits: more than any N_λ can show, and a third shorter than a double.
double ten_digits(double value) {
  char text[32];
  const auto written =
      std::to_chars(text, text + sizeof text, value, std::chars_format::scientific, 9);
  std::from_chars(text, written.ptr, value);
  return value;
}

// Eigenvalues: numbers, largest first, none negative.
std::vector<double> read_spectrum(const Json& json, int64_t samples, const std::string& where) {
  if (!json.is_array() || json.empty() || json.size() > static_cast<size_t>(samples))
    fail("{}: expected from 1 to {} eigenvalues, found {}", where, samples,
         json.is_array() ? std::to_string(json.size()) : excerpt(json));
  std::vector<double> out;
  out.reserve(json.size());
  for (const Json& entry : json) {
    const double value = entry.is_number() ? entry.get<double>() : -1;
    const bool sound = std::isfinite(value) && value >= 0 && (out.empty() || value <= out.back());
    if (!sound)
      fail("{}: expected eigenvalues that do not grow and are not negative, found {}", where,
           excerpt(entry));
    out.push_back(value);
  }
  if (!(out.front() > 0)) fail("{}: expected a positive eigenvalue, found 0", where);
  return out;
}

// Degrees of freedom, one for each λ: numbers from 0 to J, or null where λ was lost in the
// rounding.
std::vector<double> read_values(const Json& json, const DofTable& table, const std::string& where) {
  if (!json.is_array() || json.size() != table.lambdas.size())
    fail("{}: expected {} values, found {}", where, table.lambdas.size(),
         json.is_array() ? std::to_string(json.size()) : excerpt(json));
  std::vector<double> out;
  for (const Json& entry : json) {
    const double value = entry.is_number() ? entry.get<double>() : -1;
    const bool sound = value >= 0 && value <= static_cast<double>(table.samples);
    if (!sound && !entry.is_null())
      fail("{}: expected degrees of freedom from 0 to {}, found {}", where, table.samples,
           excerpt(entry));
    out.push_back(entry.is_null() ? std::numeric_limits<double>::quiet_NaN() : value);
  }
  return out;
}

std::vector<double> read_lambdas(const Json& json, const std::string& where) {
  if (!json.is_array() || json.empty())
    fail("{}: lambdas: expected positive numbers, found {}", where, excerpt(json));
  std::vector<double> out;
  for (const Json& entry : json) {
    const double value = entry.is_number() ? entry.get<double>() : 0;
    if (!(value > 0 && std::isfinite(value)))
      fail("{}: lambdas: expected positive numbers, found {}", where, excerpt(entry));
    out.push_back(value);
  }
  return out;
}

// Numbers above 0, `count` of them.
std::vector<double> read_positive(const Json& json, std::string_view name, size_t count,
                                  const std::string& where) {
  std::vector<double> out;
  for (const Json& entry : array_field(json, name, static_cast<int64_t>(count), where)) {
    const double value = entry.is_number() ? entry.get<double>() : 0;
    if (!(value > 0 && std::isfinite(value)))
      fail("{}: {}: expected positive numbers, found {}", where, name, excerpt(entry));
    out.push_back(value);
  }
  return out;
}

FeatureErrors read_errors(const Json& json, size_t count, const std::string& where) {
  FeatureErrors out;
  out.gaussian = read_positive(json, "gaussian", count, where);
  out.leverage = read_positive(json, "leverage", count, where);
  out.largest_score = ConfigFields(json, where).positive("largest_score");
  return out;
}

void read_heads(const Json& json, const std::string& where, DofTable& table) {
  const Json& layers = array_field(json, "layers", table.model.layers, where);
  for (size_t s = 0; s < layers.size(); ++s) {
    const std::string in_layer = fmt::format("{}: layer {}", where, s + 1);
    const Json& heads = array_field(layers[s], "heads", table.heads_in_layer(), in_layer);
    for (size_t h = 0; h < heads.size(); ++h) {
      const std::string in_head = fmt::format("{}, head {}", in_layer, h + 1);
      if (table.has_spectra()) {
        for (const Json& spectrum : array_field(heads[h], "spectra", table.draws, in_head))
          table.spectra.push_back(read_spectrum(spectrum, table.samples, in_head));
      } else {
        for (const Json& values : array_field(heads[h], "values", table.draws, in_head))
          table.values.push_back(read_values(values, table, in_head));
      }
      if (!table.ladder.empty()) {
        if (!heads[h].contains("errors")) fail("{}: errors: missing", in_head);
        table.errors.push_back(read_errors(heads[h]["errors"], table.ladder.size(), in_head));
      }
    }
  }
}

// The measurements of one draw of one head, as they go to the file.
Json draw_json(const DofTable& table, size_t i) {
  Json out = Json::array();
  if (table.has_spectra())
    for (const double value : table.spectra[i]) out.push_back(ten_digits(value));
  else
    for (const double value : table.values[i])
      out.push_back(std::isnan(value) ? Json() : Json(value));
  return out;
}

}  // namespace

Json to_json(const FeatureErrors& errors) {
  return {{"gaussian", errors.gaussian},
          {"leverage", errors.leverage},
          {"largest_score", errors.largest_score}};
}

Json dof_summary(const DofTable& table) {
  Json layers = Json::array();
  auto errors = table.errors.begin();
  for (const DofRow& row : degrees_of_freedom(table, table.lambda)) {
    Json layer = head_json(row.largest());
    for (const DofEstimate& head : row.heads) {
      layer["heads"].push_back(head_json(head));
      if (!table.errors.empty()) layer["heads"].back()["errors"] = to_json(*errors++);
    }
    layers.push_back(std::move(layer));
  }
  Json json = {{"format", kDofFormat},
               {"version", kDofVersion},
               {"model", to_json(table.model)},
               {"coordinates", name(table.coordinates)},
               {"feature_heads", table.heads_in_layer()},
               {"gram", name(table.gram)},
               {"lambda", table.lambda},
               {"smallest_lambda", table.smallest_lambda},
               {"samples", table.samples},
               {"draws", table.draws},
               {"sequences", table.sequences},
               {"length", table.length},
               {"seed", table.seed},
               {"layers", std::move(layers)}};
  if (!table.ladder.empty()) json["ladder"] = table.ladder;
  return json;
}

void save_dof_table(const fs::path& path, const DofTable& table) {
  Json json = dof_summary(table);
  if (!table.has_spectra()) json["lambdas"] = table.lambdas;
  size_t next = 0;
  for (Json& layer : json["layers"])
    for (Json& head : layer["heads"])
      for (int64_t r = 0; r < table.draws; ++r)
        head[table.has_spectra() ? "spectra" : "values"].push_back(draw_json(table, next++));
  write_whole(path, json.dump() + "\n");
}

DofTable load_dof_table(const fs::path& path) {
  return read_dof_table(load_json(path, Input::kFileOrPipe), path.string());
}

DofTable read_dof_table(const Json& json, const std::string& where) {
  require_format(json, kDofFormat, kDofVersion, where);
  const ConfigFields fields(json, where);

  DofTable table;
  if (!json.contains("model")) fields.refuse("model", "missing");
  table.model = read_identity(json["model"], where + ": model");
  // Tables of 0.1.0 know no other coordinates than the model's own.
  const auto coordinates = find_named<Coordinates>(fields.text("coordinates").value_or("raw"));
  if (!coordinates) fields.refuse("coordinates", "expected " + one_of_names<Coordinates>());
  table.coordinates = *coordinates;
  table.feature_heads = read_feature_heads(fields, table.model);
  const auto gram = find_named<GramScale>(fields.text("gram").value_or(""));
  if (!gram) fields.refuse("gram", "expected " + one_of_names<GramScale>());
  table.gram = *gram;
  table.lambda = fields.positive("lambda");
  table.smallest_lambda = fields.positive("smallest_lambda");
  table.samples = fields.size("samples");
  table.draws = fields.size("draws");
  table.sequences = fields.size("sequences");
  table.length = fields.size("length");
  const Json* seed = fields.find("seed");
  if (seed == nullptr || !seed->is_number_unsigned())
    fields.refuse("seed", "expected a whole number");
  table.seed = seed->get<uint64_t>();
  if (table.lambda < table.smallest_lambda)
    fields.refuse("lambda", "expected at least smallest_lambda");
  if (json.contains("lambdas")) {
    table.lambdas = read_lambdas(json["lambdas"], where);
    if (std::find(table.lambdas.begin(), table.lambdas.end(), table.lambda) == table.lambdas.end())
      fields.refuse("lambdas", "expected lambda among them");
  }
  if (json.contains("ladder"))
    for (const Json& M : json["ladder"]) {
      if (!M.is_number_integer() || M.get<int64_t>() < 1)
        fields.refuse("ladder", "expected numbers of features from 1 up");
      table.ladder.push_back(M.get<int64_t>());
    }
  read_heads(json, where, table);
  return table;
}

}  // namespace dofla
