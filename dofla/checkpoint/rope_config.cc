#include "dofla/checkpoint/rope_config.h"

#include <algorithm>
#include <array>

#include "dofla/core/error.h"

namespace dofla {
namespace {

bool is_llama3(const ConfigFields& block) {
  const std::string older = block.text("type").value_or("default");
  const std::string type = block.text("rope_type").value_or(older);
  if (type != "default" && type != "llama3")
    block.refuse("rope_type",
                 fmt::format("{} is not supported; \"default\" and \"llama3\" are", excerpt(type)));
  return type == "llama3";
}

// Transformers 5 keeps all rotary settings in rope_parameters. Before, rope_scaling held the type
// and its parameters, and theta stood beside it under a name of the family's own.
std::optional<ConfigFields> rope_block(const ConfigFields& fields) {
  constexpr std::array<std::string_view, 8> kKnown = {
      "rope_type",        "type",
      "rope_theta",       "partial_rotary_factor",
      "factor",           "low_freq_factor",
      "high_freq_factor", "original_max_position_embeddings"};
  const Json* older = fields.find("rope_scaling");
  const Json* newer = fields.find("rope_parameters");
  if (older != nullptr && newer != nullptr && *older != *newer)
    fields.refuse("rope_scaling", "differs from rope_parameters; expected only one of them");
  const Json* given = newer != nullptr ? newer : older;
  if (given == nullptr) return std::nullopt;
  const std::string_view name = newer != nullptr ? "rope_parameters" : "rope_scaling";
  ConfigFields block(*given, fmt::format("{}: {}", fields.where(), name));
  is_llama3(block);  // refuses another type by its name rather than by its parameters
  for (const auto& [key, value] : given->items())
    if (std::find(kKnown.begin(), kKnown.end(), key) == kKnown.end())
      block.refuse(printable(key), "not supported");
  return block;
}

Rope::Llama3 read_llama3(const ConfigFields& block) {
  Rope::Llama3 scaling;
  scaling.factor = block.positive("factor");
  scaling.low_frequency_factor = block.positive("low_freq_factor");
  scaling.high_frequency_factor = block.positive("high_freq_factor");
  scaling.original_context = static_cast<double>(block.size("original_max_position_embeddings"));
  if (scaling.factor < 1) block.unexpected("factor", "at least 1", scaling.factor);
  if (scaling.low_frequency_factor >= scaling.high_frequency_factor)
    block.unexpected("low_freq_factor", "less than high_freq_factor", scaling.low_frequency_factor);
  return scaling;
}

// A setting that stands in the block, or outside it in older files, or nowhere.
double rope_number(const ConfigFields& fields, const std::optional<ConfigFields>& block,
                   std::string_view inside, std::string_view outside, double fallback) {
  if (!block || block->find(inside) == nullptr) return fields.positive(outside, fallback);
  const double value = block->positive(inside);
  if (fields.positive(outside, value) != value)
    block->refuse(
        inside, fmt::format("{}, but {} outside is {}", value, outside, fields.positive(outside)));
  return value;
}

}  // namespace

Rope read_rope(const ConfigFields& fields, const RopeSpelling& spelling, int64_t head_size) {
  const std::optional<ConfigFields> block = rope_block(fields);
  const double fraction = rope_number(fields, block, "partial_rotary_factor", spelling.fraction,
                                      spelling.default_fraction);
  if (fraction > 1) fields.refuse(spelling.fraction, "expected at most 1");
  Rope rope;
  rope.theta = rope_number(fields, block, "rope_theta", spelling.theta, rope.theta);
  rope.dims = static_cast<int64_t>(static_cast<double>(head_size) * fraction);
  if (block && is_llama3(*block)) rope.llama3 = read_llama3(*block);
  if (rope.dims == 0 || rope.dims % 2 != 0)
    fields.refuse(spelling.fraction,
                  fmt::format("rotates {} of the {} coordinates of a head; expected an even number",
                              rope.dims, head_size));
  return rope;
}

}  // namespace dofla
