#include "dofla/dof/dof_table.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>

#include "dofla/checkpoint/config_fields.h"
#include "dofla/core/error.h"
#include "dofla/core/saved_json.h"
#include "dofla/dof/estimate.h"

namespace dofla {
namespace {

constexpr std::string_view kFormat = "dofla.dof";
constexpr int64_t kVersion = 1;

int64_t spectrum_count(const DofTable& table) {
  return element_count({table.model.layers, table.model.heads, table.draws});
}

DofEstimate estimate(const std::vector<double>& draws) {
  const auto count = static_cast<double>(draws.size());
  DofEstimate out;
  for (const double value : draws) out.mean += value / count;
  if (draws.size() == 1) return out;
  double squares = 0;
  for (const double value : draws) squares += (value - out.mean) * (value - out.mean);
  out.spread = std::sqrt(squares / (count - 1));
  return out;
}

double checked_dof(const DofTable& table, int64_t layer, int64_t head, int64_t draw,
                   double lambda) {
  const std::vector<double>& spectrum = table.spectrum(layer, head, draw);
  const double dof = degrees_of_freedom(spectrum, lambda);
  constexpr double kLargestRelativeError = 1e-3;
  if (rounding_error(spectrum, table.samples, lambda) > kLargestRelativeError * dof)
    fail(
        "layer {}, head {}: with Gram scale \"{}\" eigenvalues reach {:.1e}, and λ = {:g} is lost "
        "in the rounding of double precision: use Gram scale trace or max",
        layer + 1, head + 1, name(table.gram), spectrum.front(), lambda);
  return dof;
}

// Ten significant digits: more than any N_λ can show, and a third shorter than a double.
double ten_digits(double value) {
  char text[32];
  const auto written =
      std::to_chars(text, text + sizeof text, value, std::chars_format::scientific, 9);
  std::from_chars(text, written.ptr, value);
  return value;
}

Json head_json(const DofEstimate& dof) {
  return {{"dof", dof.mean}, {"spread", dof.spread}};
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

void read_spectra(const Json& json, const std::string& where, DofTable& table) {
  const Json& layers = array_field(json, "layers", table.model.layers, where);
  for (size_t s = 0; s < layers.size(); ++s) {
    const std::string in_layer = fmt::format("{}: layer {}", where, s + 1);
    const Json& heads = array_field(layers[s], "heads", table.model.heads, in_layer);
    for (size_t h = 0; h < heads.size(); ++h) {
      const std::string in_head = fmt::format("{}, head {}", in_layer, h + 1);
      for (const Json& spectrum : array_field(heads[h], "spectra", table.draws, in_head))
        table.spectra.push_back(read_spectrum(spectrum, table.samples, in_head));
    }
  }
}

}  // namespace

const std::vector<double>& DofTable::spectrum(int64_t layer, int64_t head, int64_t draw) const {
  return spectra.at(static_cast<size_t>((layer * model.heads + head) * draws + draw));
}

std::vector<DofRow> degrees_of_freedom(const DofTable& table, double lambda) {
  require(static_cast<int64_t>(table.spectra.size()) == spectrum_count(table),
          "spectra: expected {}, found {}", spectrum_count(table), table.spectra.size());
  if (!(lambda > 0 && std::isfinite(lambda)))
    fail("λ: expected a positive number, found {:g}", lambda);
  if (lambda < table.smallest_lambda)
    fail(
        "λ = {:g} is below {:g}, the smallest that the spectra were measured for: measure again "
        "with this λ",
        lambda, table.smallest_lambda);
  std::vector<DofRow> rows(static_cast<size_t>(table.model.layers));
  for (int64_t s = 0; s < table.model.layers; ++s) {
    DofRow& row = rows[static_cast<size_t>(s)];
    for (int64_t h = 0; h < table.model.heads; ++h) {
      std::vector<double> draws;
      for (int64_t r = 0; r < table.draws; ++r)
        draws.push_back(checked_dof(table, s, h, r, lambda));
      row.heads.push_back(estimate(draws));
      if (row.heads.back().mean > row.largest().mean) row.largest_head = h;
    }
  }
  return rows;
}

Json dof_summary(const DofTable& table) {
  Json layers = Json::array();
  for (const DofRow& row : degrees_of_freedom(table, table.lambda)) {
    Json layer = head_json(row.largest());
    for (const DofEstimate& head : row.heads) layer["heads"].push_back(head_json(head));
    layers.push_back(std::move(layer));
  }
  return {{"format", kFormat},
          {"version", kVersion},
          {"model", to_json(table.model)},
          {"gram", name(table.gram)},
          {"lambda", table.lambda},
          {"smallest_lambda", table.smallest_lambda},
          {"samples", table.samples},
          {"draws", table.draws},
          {"sequences", table.sequences},
          {"length", table.length},
          {"seed", table.seed},
          {"layers", std::move(layers)}};
}

void save_dof_table(const fs::path& path, const DofTable& table) {
  Json json = dof_summary(table);
  size_t next = 0;
  for (Json& layer : json["layers"])
    for (Json& head : layer["heads"])
      for (int64_t r = 0; r < table.draws; ++r) {
        Json spectrum = Json::array();
        for (const double value : table.spectra[next]) spectrum.push_back(ten_digits(value));
        head["spectra"].push_back(std::move(spectrum));
        ++next;
      }
  write_whole(path, json.dump() + "\n");
}

DofTable load_dof_table(const fs::path& path) {
  const std::string where = path.string();
  const Json json = load_json(path);
  require_format(json, kFormat, kVersion, where);
  const ConfigFields fields(json, where);

  DofTable table;
  if (!json.contains("model")) fields.refuse("model", "missing");
  table.model = read_identity(json["model"], where + ": model");
  const auto gram = gram_scale_from_name(fields.text("gram").value_or(""));
  if (!gram) fields.refuse("gram", "expected trace, max, samples or none");
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
  read_spectra(json, where, table);
  return table;
}

}  // namespace dofla
